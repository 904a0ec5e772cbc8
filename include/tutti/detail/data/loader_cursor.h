#pragma once
// Where reading a dataset stands: the epoch, and what of it has been read under which dealing. The part that loaders
// over datasets and over streams share.
#include <cstdint>
#include <vector>

#include "tutti/data/sampler.h"
#include "tutti/state/stateful.h"

namespace tutti {

/// Shared between a loader, which moves it, and who saves it. It is the same on all ranks when they have received the
/// same number of batches, so the state of one rank is enough. Not thread safe.
class LoaderCursor : public Stateful {
 public:
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
  /// as far as that is known, and while a loop is under way.
  void skip(std::int64_t batches);

  /// A loop over next_epoch() begins; one that is under way is no longer followed. The loop's number for what follows.
  std::int64_t begin();
  /// Loop number `loop` has received a micro-batch.
  void received(std::int64_t loop);
  /// Loop number `loop` has ended, by itself or early: its epoch is over.
  void end(std::int64_t loop);

 protected:
  /// `dealing`: how this loader deals; its number of batches does not matter.
  explicit LoaderCursor(const EpochSegment& sharding) : new_segment_(sharding) {}

  /// Micro-batches that are left of next_epoch() on some rank; a negative number where that is not known.
  virtual std::int64_t batches_left() const { return -1; }

  /// A place in the data.
  struct ReadState {
    std::int64_t epoch = 0;
    std::int64_t next_epoch = 1;
    std::vector<EpochSegment> segments{};
  };
  /// "epoch", "next_epoch" and "segments.*" of a saved state. Throws CheckpointError.
  static ReadState read_state_from(const StateDict& state);
  /// Enters the same into `state`.
  void save_read_state(StateDict& state) const;
  /// The next begin() goes on there; a loop that is under way is no longer followed.
  void set_read_state(ReadState read_state);

 private:
  void count(std::int64_t batches);

  EpochSegment new_segment_;
  std::int64_t epoch_ = 0;
  std::int64_t next_epoch_ = 1;
  std::vector<EpochSegment> segments_;
  std::int64_t reading_ = 0;  // number of the loop that is followed; 0: none
  std::int64_t loops_ = 0;
};

}  // namespace tutti
