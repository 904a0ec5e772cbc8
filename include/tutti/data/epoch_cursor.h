#pragma once
// Where reading a dataset stands, exactly: the epoch, and what of it has been read under which dealing. So a training
// run goes on after the last batch that it has used, on any number of ranks.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/data/sampler.h"
#include "tutti/state/stateful.h"

namespace tutti {

/// Shared between a DataLoader, which moves it, and who saves it. It is the same on all ranks when they have received
/// the same number of batches, so the state of one rank is enough. Not thread safe.
class EpochCursor final : public Stateful {
 public:
  /// Throws UsageError for an empty dataset, options out of range, and where drop_last leaves no batch.
  explicit EpochCursor(const ShardOptions& options);

  const ShardOptions& options() const { return options_; }
  /// Micro-batches of a whole epoch on this rank.
  std::int64_t batches_per_epoch() const { return batches_per_epoch_; }

  /// The epoch that is being read, or that the next loop reads.
  std::int64_t epoch() const { return epoch_; }
  /// Micro-batches of epoch() that each rank has received, the one in the loop's body included. Under several dealings:
  /// of all together.
  std::int64_t batch_index() const;
  /// The same by dealing, in the order of reading.
  const std::vector<EpochSegment>& segments() const { return segments_; }
  /// Whether a loop is under way.
  bool reading() const { return reading_ != 0; }

  /// The epoch that the next begin() reads.
  std::int64_t next_epoch() const { return reading() ? next_epoch_ : epoch_; }
  /// What has been read of it before: not empty after load_state_dict() and skip().
  std::vector<EpochSegment> read_before() const { return reading() ? std::vector<EpochSegment>() : segments_; }
  /// The next loop reads `epoch`, from its start unless it is the one that this cursor stands in already.
  void set_epoch(std::int64_t epoch);
  /// The next loop leaves out `batches` more micro-batches on each rank. Throws UsageError when there are fewer left,
  /// and while a loop is under way.
  void skip(std::int64_t batches);

  /// A loop over next_epoch() begins; one that is under way is no longer followed. The loop's number for what follows.
  std::int64_t begin();
  /// Loop number `loop` has received a micro-batch.
  void received(std::int64_t loop);
  /// Loop number `loop` has ended, by itself or early: its epoch is over.
  void end(std::int64_t loop);

  /// "epoch", "next_epoch", "segments.*", and what the samples' order depends on.
  StateDict state_dict() const override;
  /// The next begin() goes on after the saved micro-batches, under this loader's dealing; a loop that is under way is
  /// no longer followed. Throws CheckpointError, naming the difference, where dataset size, shuffle, seed, sharding or
  /// drop_last are not what was saved.
  void load_state_dict(const StateDict& state) override;

 private:
  void count(std::int64_t batches);

  ShardOptions options_;
  std::int64_t batches_per_epoch_;
  std::int64_t epoch_ = 0;
  std::int64_t next_epoch_ = 1;
  std::vector<EpochSegment> segments_;
  std::int64_t reading_ = 0;  // number of the loop that is followed; 0: none
  std::int64_t loops_ = 0;
};

/// One loop's way through what is left of an epoch. From its first batch on it moves the cursor; its end, early or not,
/// ends the epoch.
class EpochReading {
 public:
  explicit EpochReading(std::shared_ptr<EpochCursor> cursor);
  ~EpochReading();
  EpochReading(const EpochReading&) = delete;
  EpochReading& operator=(const EpochReading&) = delete;

  std::int64_t batches_left() const { return batches_left_; }
  /// The samples of the next micro-batch. There must be one left.
  std::vector<std::size_t> next_batch() const;
  /// They have been read: moves on.
  void received();
  /// Ends the epoch, of which nothing is left.
  void end_empty_epoch();

 private:
  std::int64_t batch_end() const;

  std::shared_ptr<EpochCursor> cursor_;
  std::vector<std::int64_t> indices_;
  std::int64_t batches_left_;
  std::int64_t next_ = 0;  // position in `indices_`
  std::int64_t loop_ = 0;  // 0: nothing received yet
};

}  // namespace tutti
