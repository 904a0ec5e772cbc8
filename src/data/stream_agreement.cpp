#include "tutti/detail/data/stream_agreement.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tutti/core/error.h"

namespace tutti {

namespace {

constexpr std::size_t state_at = 2;  // index in {loop, round, state}

StreamBatchState state_of(const std::vector<std::int64_t>& rank) {
  return static_cast<StreamBatchState>(rank[state_at]);
}

bool is_available(StreamBatchState state) {
  return state == StreamBatchState::available || state == StreamBatchState::available_and_last;
}

std::string describe_state(StreamBatchState state) {
  switch (state) {
    case StreamBatchState::available:
      return "continues";
    case StreamBatchState::available_and_last:
      return "ends with it";
    default:
      return "has ended";
  }
}

void check_no_rank_failed(const std::vector<std::vector<std::int64_t>>& ranks) {
  std::vector<int> failed;
  std::string names;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (state_of(ranks[rank]) != StreamBatchState::failed) continue;
    failed.push_back(static_cast<int>(rank));
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  if (failed.empty()) return;
  throw PeerError(names + " could not read its next batch, batch " + std::to_string(ranks[0][1]) + " of this loop",
                  failed);
}

void check_same_batch(const std::vector<std::vector<std::int64_t>>& ranks) {
  const auto place = [](const std::vector<std::int64_t>& rank) {
    return "batch " + std::to_string(rank[1]) + " of loop " + std::to_string(rank[0]);
  };
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank][0] == ranks[0][0] && ranks[rank][1] == ranks[0][1]) continue;
    throw MismatchError("rank 0 reads " + place(ranks[0]) + " over a stream, rank " + std::to_string(rank) + " reads " +
                        place(ranks[rank]) + ": all ranks must begin the same loops and leave them at the same batch");
  }
}

/// Each round needs a batch on every rank, so the other ranks would read nothing either.
UsageError no_batch_on(const std::vector<std::vector<std::int64_t>>& ranks) {
  std::string names;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!is_available(state_of(ranks[rank]))) names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  return UsageError("the stream of " + names +
                    " has no batch, so no rank would get one: give each rank a part of the data, or use "
                    "StreamSharding::slices, even_batches = false or join_uneven_inputs()");
}

}  // namespace

StreamDecision decide_stream_batch(const StreamLoopInfo& info, const std::vector<std::vector<std::int64_t>>& ranks) {
  check_same_batch(ranks);
  check_no_rank_failed(ranks);
  if (info.sharding == StreamSharding::slices) {
    for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
      if (state_of(ranks[rank]) == state_of(ranks[0])) continue;
      throw MismatchError(
          "at batch " + std::to_string(ranks[0][1]) + " rank 0's stream " + describe_state(state_of(ranks[0])) +
          ", rank " + std::to_string(rank) + "'s " + describe_state(state_of(ranks[rank])) +
          ": with StreamSharding::slices all ranks must read the same stream. Use StreamSharding::per_rank if "
          "each rank has its own stream");
    }
  }
  const auto available = std::ranges::count_if(ranks, [](const auto& rank) { return is_available(state_of(rank)); });
  const bool has_more = info.tail == EpochTail::repeat ? available == std::ssize(ranks) : available > 0;
  if (!has_more && available > 0 && ranks[0][1] == 0 && !info.is_resumed) throw no_batch_on(ranks);
  return has_more ? StreamDecision::more : StreamDecision::end;
}

std::function<StreamDecision()> StreamAgreement::start(StreamBatchState local) {
  const std::int64_t batch_index = batch_index_++;
  if (!exchange_ || info_.world_size == 1 || ranks_are_independent()) {
    return [local] { return is_available(local) ? StreamDecision::more : StreamDecision::end; };
  }
  auto pending = exchange_({info_.loop, batch_index, static_cast<std::int64_t>(local)});
  return [info = info_, pending = std::move(pending)] { return decide_stream_batch(info, pending()); };
}

void StreamAgreement::fail() noexcept {
  try {
    start(StreamBatchState::failed);
  } catch (...) {
    // The other ranks detect the failure through the transport.
  }
}

StreamLoopGuard::StreamLoopGuard(std::shared_ptr<StreamLoopCounter> counter)
    : loop_counter_(std::move(counter)), number_(loop_counter_->loops + 1) {
  if (loop_counter_->running) {
    throw UsageError(
        "a loop over this stream is already running: a stream cannot be read twice at once. End the other loop "
        "first, or make a loader for each loop");
  }
  loop_counter_->running = true;
  loop_counter_->loops = number_;
}

}  // namespace tutti
