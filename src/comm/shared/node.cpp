#include "comm/shared/node.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <system_error>
#include <thread>

#include "tutti/core/logging.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {
namespace {

/// Every rank's `mine`, by rank.
template <typename T>
std::vector<T> exchange(Engine& engine, const Operation& operation, const T& mine) {
  const auto pending = engine.start_exchange(operation, std::as_bytes(std::span(&mine, 1)));
  const auto bytes = pending->finish();
  std::vector<T> all(bytes.size() / sizeof(T));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

struct Outcome {
  bool fine = true;
  char reason[127] = {};

  void note(const std::exception& error) {
    fine = false;
    std::strncpy(reason, error.what(), sizeof(reason) - 1);
  }
};

/// Whether all ranks report `mine.fine`; else why the first does not.
bool all_fine(Engine& engine, const Operation& operation, const Outcome& mine, std::string& reason) {
  const auto outcomes = exchange(engine, operation, mine);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].fine) continue;
    reason = "rank " + std::to_string(rank) + ": " + outcomes[rank].reason;
    return false;
  }
  return true;
}

struct Shared {
  SegmentsByRank segments;
  std::vector<SegmentAddress> addresses;
};

Shared share(Engine& engine, const Operation& operation, std::size_t bytes, std::string& reason) {
  Outcome outcome;
  std::shared_ptr<SharedSegment> own;
  try {
    own = SharedSegment::create(bytes);
  } catch (const std::system_error& error) {
    outcome.note(error);
  }
  if (!all_fine(engine, operation, outcome, reason)) return {};

  Shared shared;
  shared.addresses = exchange(engine, operation, own->address());
  try {
    for (int rank = 0; rank < engine.size(); ++rank) {
      shared.segments.push_back(rank == engine.rank() ? own : SharedSegment::open(shared.addresses[rank]));
    }
  } catch (const std::system_error& error) {
    outcome.note(error);
  }
  if (!all_fine(engine, operation, outcome, reason)) return {};
  own->close_descriptor();
  return shared;
}

}  // namespace

SegmentsByRank share_segments(Engine& engine, const Operation& operation, std::size_t bytes, std::string& reason) {
  return share(engine, operation, bytes, reason).segments;
}

std::shared_ptr<SharedNode> SharedNode::connect(Engine& engine, const Operation& operation, std::string& reason) {
  Shared shared = share(engine, operation, sizeof(SharedRank), reason);
  if (shared.segments.empty()) return nullptr;
  return std::shared_ptr<SharedNode>(new SharedNode(std::move(shared.segments), engine.rank(), shared.addresses));
}

SharedNode::SharedNode(SegmentsByRank segments, int rank, const std::vector<SegmentAddress>& addresses)
    : segments_(std::move(segments)), rank_(rank) {
  // Spinning helps only where the rank that is waited for runs meanwhile. A channel's thread needs a core beside the
  // thread that computes; a thread that waits for a result has one to itself.
  const auto ranks = static_cast<unsigned>(size());
  const unsigned cores = std::thread::hardware_concurrency();
  spins_ = ranks < cores ? 2000 : 50;
  looks_ = ranks <= cores ? 2000 : 0;
  for (const SegmentAddress& address : addresses) processes_.emplace_back(address.process.number);
  if (!std::ranges::all_of(processes_, &ProcessWatch::has_descriptor)) {
    Logger(rank).warning(
        "the system gives no descriptors of processes (pidfd_open): a rank that dies is noticed when "
        "its parent has taken note of its end");
  }
}

/// What the others see of a rank while they wait for it.
class SharedNode::Look {
 public:
  Look(const SharedNode& node, int rank) : node_(node), rank_(rank) {}

  /// Throws TransferError when waiting for `awaited` to reach `value` has no sense any more.
  void operator()(const SharedProgress& awaited, std::uint32_t value) {
    const bool ended = !node_.processes_[rank_].running();
    const bool closed = node_.of(rank_).closed.load();
    const bool stopped = !ended && !closed && has_stopped_for_long();
    // A rank that came that far and then left is no failure.
    if (!(ended || closed || stopped) || awaited.reached(value)) return;
    if (stopped) throw TransferError(TransferError::Kind::stopped, {rank_}, "it is stopped", node_.stopped_timeout_);
    throw TransferError(ended ? TransferError::Kind::ended : TransferError::Kind::closed, {rank_}, "it is gone");
  }

 private:
  bool has_stopped_for_long() {
    const auto now = Clock::now();
    return clock_.due(now) && clock_.look(now, node_.processes_[rank_].stopped()) >= node_.stopped_timeout_;
  }

  const SharedNode& node_;
  int rank_;
  StoppedClock clock_{Clock::now()};
};

void SharedNode::wait_for(int rank, SharedProgress SharedRank::*progress, std::uint32_t value,
                          Deadline deadline) const {
  SharedProgress& awaited = of(rank).*progress;
  Look look(*this, rank);
  if (awaited.wait_for(value, spins_, deadline, [&] { look(awaited, value); })) return;
  std::vector<int> missing;
  for (int other = 0; other < size(); ++other) {
    if (!(of(other).*progress).reached(value)) missing.push_back(other);
  }
  throw TransferError(TransferError::Kind::timeout, missing, "it did not come");
}

void SharedNode::wait_for_all(SharedProgress SharedRank::*progress, std::uint32_t value, Deadline deadline) const {
  for (int step = 1; step < size(); ++step) wait_for((rank_ + step) % size(), progress, value, deadline);
}

void SharedNode::close() noexcept {
  own().closed.store(true);
}

}  // namespace tutti::comm
