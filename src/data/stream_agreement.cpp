#include "tutti/detail/data/stream_agreement.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tutti/core/error.h"

namespace tutti {

namespace {

constexpr std::size_t state_at = 2;  // in {loop, round, state}

StreamRoundState state_of(const std::vector<std::int64_t>& rank) {
  return static_cast<StreamRoundState>(rank[state_at]);
}

bool is_there(StreamRoundState state) {
  return state == StreamRoundState::there || state == StreamRoundState::there_and_last;
}

std::string in_words(StreamRoundState state) {
  switch (state) {
    case StreamRoundState::there:
      return "goes on";
    case StreamRoundState::there_and_last:
      return "ends with it";
    default:
      return "has ended";
  }
}

void check_nobody_failed(const std::vector<std::vector<std::int64_t>>& ranks) {
  std::vector<int> failed;
  std::string names;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (state_of(ranks[rank]) != StreamRoundState::failed) continue;
    failed.push_back(static_cast<int>(rank));
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  if (failed.empty()) return;
  throw PeerFailure(names + " could not read its next batch, batch " + std::to_string(ranks[0][1]) + " of this loop",
                    failed);
}

void check_same_place(const std::vector<std::vector<std::int64_t>>& ranks) {
  const auto place = [](const std::vector<std::int64_t>& rank) {
    return "batch " + std::to_string(rank[1]) + " of loop " + std::to_string(rank[0]);
  };
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank][0] == ranks[0][0] && ranks[rank][1] == ranks[0][1]) continue;
    throw Divergence("rank 0 reads " + place(ranks[0]) + " over a stream, rank " + std::to_string(rank) + " reads " +
                     place(ranks[rank]) + ": ranks must begin loops alike and leave them at the same batch");
  }
}

}  // namespace

StreamVerdict judge_stream_round(const StreamTerms& terms, const std::vector<std::vector<std::int64_t>>& ranks) {
  check_same_place(ranks);
  check_nobody_failed(ranks);
  if (terms.sharding == StreamSharding::slices) {
    for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
      if (state_of(ranks[rank]) == state_of(ranks[0])) continue;
      throw Divergence("at batch " + std::to_string(ranks[0][1]) + " rank 0's stream " + in_words(state_of(ranks[0])) +
                       ", rank " + std::to_string(rank) + "'s " + in_words(state_of(ranks[rank])) +
                       ": with StreamSharding::slices all ranks must read the same stream. Use StreamSharding::own for "
                       "streams of their own");
    }
  }
  const auto there = std::ranges::count_if(ranks, [](const auto& rank) { return is_there(state_of(rank)); });
  const bool goes_on = terms.tail == EpochTail::repeat ? there == std::ssize(ranks) : there > 0;
  return goes_on ? StreamVerdict::goes_on : StreamVerdict::over;
}

std::function<StreamVerdict()> StreamAgreement::start(StreamRoundState mine) {
  const std::int64_t round = round_++;
  if (!exchange_ || terms_.world_size == 1 || each_for_itself()) {
    return [mine] { return is_there(mine) ? StreamVerdict::goes_on : StreamVerdict::over; };
  }
  auto pending = exchange_({terms_.loop, round, static_cast<std::int64_t>(mine)});
  return [terms = terms_, pending = std::move(pending)] { return judge_stream_round(terms, pending()); };
}

void StreamAgreement::fail() noexcept {
  try {
    start(StreamRoundState::failed);
  } catch (...) {
    // Then they learn it from the transport.
  }
}

StreamTurn::StreamTurn(std::shared_ptr<StreamTurns> turns) : turns_(std::move(turns)), number_(turns_->loops + 1) {
  if (turns_->running) {
    throw UsageError(
        "a loop over this stream is under way: a stream cannot be read twice at once. End the other loop "
        "first, or make a loader for each");
  }
  turns_->running = true;
  turns_->loops = number_;
}

}  // namespace tutti
