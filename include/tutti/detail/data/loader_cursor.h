#pragma once
// The position of reading in a dataset: the epoch, and the segments of it that have been read, with their sharding. The
// base for loaders over datasets and over streams.
#include <cstdint>
#include <vector>

#include "tutti/detail/data/shard.h"
#include "tutti/state/stateful.h"

namespace tutti {

/// Shared between a loader, which moves it, and the Accelerator, which saves it. Cursors of ranks that have received
/// the same number of batches are equal, so a checkpoint needs the state of one rank only. Not thread safe.
class LoaderCursor : public Stateful {
 public:
  /// The epoch that is being read, or that the next loop reads.
  std::int64_t epoch() const { return reading() ? running_.back().epoch : epoch_; }
  /// Number of micro-batches of epoch() that each rank has received, including the one in the loop's body; the sum over
  /// all segments.
  std::int64_t batch_index() const;
  /// The samples that all ranks have received of epoch(), in micro-batches of the loader's present sharding. Differs
  /// from batch_index() after a resume on another number of ranks or with another batch size.
  double batches_of_this_sharding() const;
  /// batch_index() by segment, in the order of reading.
  const std::vector<EpochSegment>& segments() const { return reading() ? running_.back().segments : segments_; }
  /// True while a loop runs. Of several, the cursor is at the position of the one that received a batch last.
  bool reading() const { return !running_.empty(); }

  /// The epoch that the next begin() reads.
  std::int64_t next_epoch() const { return epoch_; }
  /// The segments of next_epoch() that have been read before: not empty after load_state_dict() and skip().
  const std::vector<EpochSegment>& read_before() const { return segments_; }
  /// The next loop reads `epoch`. If it is the cursor's next epoch already, its segments are kept; otherwise the loop
  /// starts at the beginning.
  void set_epoch(std::int64_t epoch);
  /// The next loop skips `batches` more micro-batches on each rank. Throws UsageError while a loop runs, if fewer are
  /// left and the number is known, and if load_state_dict() has set a position inside an epoch and no loop has begun
  /// since: that position would be skipped twice.
  void skip(std::int64_t batches);

  /// Begins a loop over next_epoch() and returns its number.
  std::int64_t begin();
  /// Records that loop number `loop` has received a micro-batch. Throws UsageError if load_state_dict() has set another
  /// position since the loop began.
  void received(std::int64_t loop);
  /// Records that loop number `loop` has ended, early or not, which ends its epoch.
  void end(std::int64_t loop);

 protected:
  /// `sharding`: the sharding of this loader; its number of batches is ignored.
  explicit LoaderCursor(const EpochSegment& sharding) : new_segment_(sharding) {}

  /// Number of ranks of this loader.
  int world_size() const { return new_segment_.world_size; }

  /// Number of micro-batches left of next_epoch() on rank 0; negative if it is unknown.
  virtual std::int64_t batches_left() const { return -1; }

  /// A position in the data.
  struct ReadState {
    std::int64_t epoch = 0;
    std::int64_t next_epoch = 1;
    std::vector<EpochSegment> segments{};
  };
  /// Reads "epoch", "next_epoch" and "segments.*" of a saved state. Throws CheckpointError.
  static ReadState read_state_from(const StateDict& state);
  /// Writes these keys to `state`.
  void save_read_state(StateDict& state) const;
  /// The next begin() continues at this position. A running loop can receive no further batch.
  void set_read_state(ReadState read_state);

 private:
  void count(std::vector<EpochSegment>& segments, std::int64_t batches) const;

  struct RunningLoop {
    std::int64_t number = 0;
    std::int64_t epoch = 0;
    std::vector<EpochSegment> segments;  // of the epoch that have been read
  };

  EpochSegment new_segment_;
  std::int64_t epoch_ = 0;              // of the next loop
  std::int64_t next_epoch_ = 1;         // of the one after it
  std::vector<EpochSegment> segments_;  // of epoch_ that have been read before
  std::vector<RunningLoop> running_;    // in the order in which they last received a batch
  std::int64_t loops_ = 0;
  bool restored_ = false;  // set_read_state() has set segments_, and no loop has begun since
};

}  // namespace tutti
