#pragma once
// The agreement of ranks, round by round, on whether a stream continues.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/detail/data/epoch_cursor.h"
#include "tutti/detail/data/loader_agreement.h"
#include "tutti/detail/data/stream_cursor.h"

namespace tutti {

/// The state of a rank's stream after reading a round.
enum class StreamBatchState : std::int64_t { failed = -1, ended = 0, available = 1, available_and_last = 2 };

enum class StreamDecision { more, end };

/// The inputs of the decisions of one loop.
struct StreamLoopInfo {
  StreamSharding sharding = StreamSharding::slices;
  EpochTail tail = EpochTail::repeat;
  int world_size = 1;
  std::int64_t loop = 0;    ///< the loop's number on this rank
  bool is_resumed = false;  ///< the loop begins within an epoch
};

/// Decides whether a round exists, from {loop, round, state} of every rank. No I/O; the decision is equal on all ranks.
/// Throws PeerError with the ranks that failed. Throws MismatchError if ranks are not in the same round of the same
/// loop, or if streams differ with StreamSharding::slices. Throws UsageError if a rank has no batch in the first round
/// of an epoch and other ranks have one that they could not use.
StreamDecision decide_stream_batch(const StreamLoopInfo& info, const std::vector<std::vector<std::int64_t>>& ranks);

class StreamAgreement {
 public:
  StreamAgreement(LoaderAgreement exchange, const StreamLoopInfo& info) : exchange_(std::move(exchange)), info_(info) {}

  /// True if each rank reads its own stream to its end, so that no agreement is needed.
  bool ranks_are_independent() const {
    return info_.sharding == StreamSharding::per_rank && info_.tail == EpochTail::shorten && info_.world_size > 1;
  }
  /// Starts the agreement on the next round, without blocking. The returned function blocks until the decision; see
  /// decide_stream_batch().
  std::function<StreamDecision()> start(StreamBatchState local);
  /// Reports to the other ranks that this rank failed to read the next round.
  void fail() noexcept;

 private:
  LoaderAgreement exchange_;
  StreamLoopInfo info_;
  std::int64_t batch_index_ = 0;
};

/// Counts the loops over one stream.
struct StreamLoopCounter {
  std::int64_t loops = 0;
  bool running = false;
};

/// One loop over a stream. Throws UsageError if another loop is running: a stream cannot be read twice at once.
class StreamLoopGuard {
 public:
  explicit StreamLoopGuard(std::shared_ptr<StreamLoopCounter> counter);
  ~StreamLoopGuard() { loop_counter_->running = false; }
  StreamLoopGuard(const StreamLoopGuard&) = delete;
  StreamLoopGuard& operator=(const StreamLoopGuard&) = delete;
  std::int64_t number() const { return number_; }

 private:
  std::shared_ptr<StreamLoopCounter> loop_counter_;
  std::int64_t number_;
};

}  // namespace tutti
