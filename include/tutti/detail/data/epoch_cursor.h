#pragma once
// The position of reading in a map-style dataset: the epoch, and the segments of it that have been read, with their
// sharding. A training run resumes after the last batch that it used, on any number of ranks.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/data/samplers.h"
#include "tutti/detail/data/loader_agreement.h"
#include "tutti/detail/data/loader_cursor.h"
#include "tutti/detail/data/shard.h"

namespace tutti {

struct SampledEpoch;

class EpochCursor final : public LoaderCursor {
 public:
  /// Shards the dataset's samples, a sampler's samples, or a batch sampler's batches (batch_size then counts batches).
  /// At most one sampler may be set, and shuffle excludes both. Throws UsageError for an empty dataset, options out of
  /// range, samples outside the dataset, and if drop_last leaves no batch.
  explicit EpochCursor(const ShardOptions& options, Sampler sampler = {}, BatchSampler batch_sampler = {});

  const ShardOptions& options() const { return options_; }
  /// Micro-batches of the whole next epoch on rank 0, which reads the most.
  std::int64_t batches_per_epoch() const;
  /// Micro-batches of the whole next epoch on this rank if no samples are repeated.
  std::int64_t local_batches_per_epoch() const;

  /// The sharding of `epoch`.
  ShardOptions sharding_of(std::int64_t epoch) const;
  /// True if a sampler or a batch sampler is set.
  bool sampled_by_user() const { return sampler_ || batch_sampler_; }
  /// The sampler's samples or batches of `epoch`; null without a sampler.
  std::shared_ptr<const SampledEpoch> sampled(std::int64_t epoch) const;
  /// The next sampled() asks the sampler again, which may depend on what the program has learned since.
  void forget_samples() { sampled_number_ = -1; }

  /// "epoch", "next_epoch", "segments.*", and the options that determine the samples' order. Asks no sampler for an
  /// epoch of which nothing has been read.
  StateDict state_dict() const override;
  /// The next begin() continues after the saved micro-batches, under this loader's sharding; a running loop can receive
  /// no further batch. If the state is within an epoch, throws CheckpointError with the difference if dataset size,
  /// shuffle, seed, sharding, drop_last or the samplers' order differ from the saved ones.
  void load_state_dict(const StateDict& state) override;

 private:
  std::int64_t batches_left() const override;

  ShardOptions options_;
  Sampler sampler_;
  BatchSampler batch_sampler_;
  mutable std::int64_t sampled_number_ = -1;  // the epoch of `sampled_`
  mutable std::shared_ptr<const SampledEpoch> sampled_;
};

/// What ranks read at the end of an epoch if the samples do not fill all ranks.
enum class EpochTail {
  repeat,   ///< the epoch's first samples again, so that all ranks read the same number of batches
  shorten,  ///< no repeats: some ranks read a shorter batch, or one batch less
  join,     ///< as shorten, but a rank without a batch reads a filler batch of the first samples
};

/// One micro-batch: indices of samples in the dataset.
struct EpochBatch {
  std::vector<std::size_t> samples{};
  std::int64_t repeated = 0;  ///< number of samples at the end of `samples` that repeat the epoch's first ones
  bool filler = false;        ///< EpochTail::join: this rank has no batch left, and another rank has one
};

/// One loop over the rest of an epoch. Moves the cursor from its first batch on. Its end, early or not, ends the epoch.
class EpochReading {
 public:
  /// With a sampler and an agreement every rank must construct it, and ranks compare their samplers' samples:
  /// MismatchError if these differ.
  explicit EpochReading(std::shared_ptr<EpochCursor> cursor, EpochTail tail = EpochTail::repeat,
                        const LoaderAgreement& agreement = {});
  ~EpochReading();
  EpochReading(const EpochReading&) = delete;
  EpochReading& operator=(const EpochReading&) = delete;

  /// The epoch that is read.
  std::int64_t epoch() const { return epoch_; }
  /// Number of micro-batches of this loop on this rank.
  std::int64_t size() const { return size_; }
  /// Number of micro-batches that the loop has not received.
  std::int64_t batches_left() const { return size_ - received_; }
  /// True if other ranks have another number of micro-batches.
  bool uneven() const { return uneven_; }
  /// Micro-batch number 0 .. size() - 1. Thread safe.
  EpochBatch batch(std::int64_t number) const;
  /// Records that the loop has received the next micro-batch.
  void received();

 private:
  void compare_samples(const LoaderAgreement& agreement) const;

  std::shared_ptr<EpochCursor> cursor_;
  std::int64_t epoch_;
  EpochTail tail_;
  std::int64_t batch_size_;
  std::shared_ptr<const SampledEpoch> sampled_;
  Shard items_;                    // indices of samples, or of the sampler's samples or batches
  std::int64_t unique_items_ = 0;  // number of items at the front that are not repeats
  std::int64_t size_ = 0;
  bool uneven_ = false;
  std::int64_t received_ = 0;
  std::int64_t loop_ = 0;  // 0: no batch received yet
};

}  // namespace tutti
