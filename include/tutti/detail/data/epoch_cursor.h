#pragma once
// Where reading a map-style dataset stands, exactly: the epoch, and what of it has been read under which dealing. So a
// training run goes on after the last batch that it has used, on any number of ranks.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/data/sampler.h"
#include "tutti/data/samplers.h"
#include "tutti/detail/data/loader_agreement.h"
#include "tutti/detail/data/loader_cursor.h"

namespace tutti {

struct SampledEpoch;

class EpochCursor final : public LoaderCursor {
 public:
  /// What is dealt are the dataset's samples, or a sampler's samples, or a batch sampler's batches (then batch_size
  /// counts these). At most one of the two may be set, and then no shuffle. Throws UsageError for an empty dataset,
  /// options out of range, samples that are not there, and where drop_last leaves no batch.
  explicit EpochCursor(const ShardOptions& options, Sampler sampler = {}, BatchSampler batch_sampler = {});

  const ShardOptions& options() const { return options_; }
  /// Micro-batches of the whole next epoch: of the rank that reads the most, which is rank 0.
  std::int64_t batches_per_epoch() const;
  /// The same of this rank, where no samples are repeated.
  std::int64_t local_batches_per_epoch() const;

  /// How `epoch` is dealt.
  ShardOptions sharding_of(std::int64_t epoch) const;
  /// Whether a sampler or a batch sampler gives the samples.
  bool sampled_by_user() const { return sampler_ || batch_sampler_; }
  /// What it gives for `epoch`; null without one.
  std::shared_ptr<const SampledEpoch> sampled(std::int64_t epoch) const;

  /// "epoch", "next_epoch", "segments.*", and what the samples' order depends on.
  StateDict state_dict() const override;
  /// The next begin() goes on after the saved micro-batches, under this loader's dealing; a loop that is under way is
  /// no longer followed. Throws CheckpointError, naming the difference, where dataset size, shuffle, seed, sharding,
  /// drop_last or the samplers' order are not what was saved.
  void load_state_dict(const StateDict& state) override;

 private:
  std::int64_t batches_left() const override;

  ShardOptions options_;
  Sampler sampler_;
  BatchSampler batch_sampler_;
  mutable std::int64_t sampled_number_ = -1;  // the epoch of `sampled_`
  mutable std::shared_ptr<const SampledEpoch> sampled_;
};

/// What ranks read at an epoch's end when the samples do not fill all of them.
enum class EpochTail {
  repeat,   ///< the epoch's first samples again, so that all ranks read as many batches
  shorten,  ///< nothing: some ranks read a shorter batch, or one batch less
  join,     ///< as shorten, but a rank without a batch gets one of the first samples again, to be weighed with 0
};

/// One micro-batch: samples of the dataset.
struct EpochBatch {
  std::vector<std::size_t> samples{};
  std::int64_t repeated = 0;  ///< of `samples`, at the end: repeats of the epoch's first ones
  bool filler = false;        ///< EpochTail::join: this rank has no batch left, others have
};

/// One loop's way through what is left of an epoch. From its first batch on it moves the cursor; its end, early or not,
/// ends the epoch.
class EpochReading {
 public:
  /// With a sampler and an agreement every rank must construct it, and ranks compare what their samplers give:
  /// MismatchError where that differs.
  explicit EpochReading(std::shared_ptr<EpochCursor> cursor, EpochTail tail = EpochTail::repeat,
                        const LoaderAgreement& agreement = {});
  ~EpochReading();
  EpochReading(const EpochReading&) = delete;
  EpochReading& operator=(const EpochReading&) = delete;

  /// Micro-batches of this loop on this rank.
  std::int64_t size() const { return size_; }
  /// Those that it has not received.
  std::int64_t batches_left() const { return size_ - received_; }
  /// Whether other ranks have another number of them.
  bool uneven() const { return uneven_; }
  /// Micro-batch number 0 .. size() - 1. May be called from several threads.
  EpochBatch batch(std::int64_t number) const;
  /// The next one has been read: moves on.
  void received();
  /// Ends the epoch, of which nothing is left.
  void end_empty_epoch();

 private:
  void compare_samples(const LoaderAgreement& agreement) const;

  std::shared_ptr<EpochCursor> cursor_;
  std::int64_t epoch_;
  EpochTail tail_;
  std::int64_t batch_size_;
  std::shared_ptr<const SampledEpoch> sampled_;
  std::vector<std::int64_t> items_;  // samples, or numbers of what the sampler gives
  std::int64_t unique_items_ = 0;    // of these, in front: no repeats
  std::int64_t size_ = 0;
  bool uneven_ = false;
  std::int64_t received_ = 0;
  std::int64_t loop_ = 0;  // 0: nothing received yet
};

}  // namespace tutti
