#pragma once
// How ranks agree, round by round, whether a stream goes on.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/detail/data/epoch_cursor.h"
#include "tutti/detail/data/loader_agreement.h"
#include "tutti/detail/data/stream_cursor.h"

namespace tutti {

/// What a rank found where it read a round.
enum class StreamBatchState : std::int64_t { failed = -1, ended = 0, available = 1, available_and_last = 2 };

enum class StreamDecision { more, end };

/// What decides the verdicts of one loop.
struct StreamLoopInfo {
  StreamSharding sharding = StreamSharding::slices;
  EpochTail tail = EpochTail::repeat;
  int rank = 0;
  int world_size = 1;
  std::int64_t loop = 0;  ///< its number on this rank
};

/// Whether a round exists, from what every rank said of it: {loop, round, state}. Pure, and the same on all ranks.
/// Throws PeerError naming ranks that failed, and MismatchError where ranks are not in the same round of the same loop,
/// or do not read the same stream though they should.
StreamDecision decide_stream_batch(const StreamLoopInfo& info, const std::vector<std::vector<std::int64_t>>& ranks);

class StreamAgreement {
 public:
  StreamAgreement(LoaderAgreement exchange, const StreamLoopInfo& info) : exchange_(std::move(exchange)), info_(info) {}

  /// Ranks read streams of their own, each to its end: nobody asks the others.
  bool ranks_are_independent() const {
    return info_.sharding == StreamSharding::per_rank && info_.tail == EpochTail::shorten && info_.world_size > 1;
  }
  /// Starts to agree on the next round, without blocking. What it returns blocks; see decide_stream_batch().
  std::function<StreamDecision()> start(StreamBatchState local);
  /// Tells the others that this rank has no next round because it failed.
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

/// One loop over a stream. Throws UsageError where another one is under way: a stream cannot be read twice at once.
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
