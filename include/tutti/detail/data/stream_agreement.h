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
enum class StreamRoundState : std::int64_t { failed = -1, ended = 0, there = 1, there_and_last = 2 };

enum class StreamVerdict { goes_on, over };

/// What decides the verdicts of one loop.
struct StreamTerms {
  StreamSharding sharding = StreamSharding::slices;
  EpochTail tail = EpochTail::repeat;
  int rank = 0;
  int world_size = 1;
  std::int64_t loop = 0;  ///< its number on this rank
};

/// Whether a round exists, from what every rank said of it: {loop, round, state}. Pure, and the same on all ranks.
/// Throws PeerFailure naming ranks that failed, and Divergence where ranks are not in the same round of the same loop,
/// or do not read the same stream though they should.
StreamVerdict judge_stream_round(const StreamTerms& terms, const std::vector<std::vector<std::int64_t>>& ranks);

class StreamAgreement {
 public:
  StreamAgreement(LoaderAgreement exchange, const StreamTerms& terms) : exchange_(std::move(exchange)), terms_(terms) {}

  /// Ranks read streams of their own, each to its end: nobody asks the others.
  bool each_for_itself() const {
    return terms_.sharding == StreamSharding::own && terms_.tail == EpochTail::shorten && terms_.world_size > 1;
  }
  /// Starts to agree on the next round, without blocking. What it returns blocks; see judge_stream_round().
  std::function<StreamVerdict()> start(StreamRoundState mine);
  /// Tells the others that this rank has no next round because it failed.
  void fail() noexcept;

 private:
  LoaderAgreement exchange_;
  StreamTerms terms_;
  std::int64_t round_ = 0;
};

/// Counts the loops over one stream.
struct StreamTurns {
  std::int64_t loops = 0;
  bool running = false;
};

/// One loop over a stream. Throws UsageError where another one is under way: a stream cannot be read twice at once.
class StreamTurn {
 public:
  explicit StreamTurn(std::shared_ptr<StreamTurns> turns);
  ~StreamTurn() { turns_->running = false; }
  StreamTurn(const StreamTurn&) = delete;
  StreamTurn& operator=(const StreamTurn&) = delete;
  std::int64_t number() const { return number_; }

 private:
  std::shared_ptr<StreamTurns> turns_;
  std::int64_t number_;
};

}  // namespace tutti
