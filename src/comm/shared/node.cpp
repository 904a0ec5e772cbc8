#include "comm/shared/node.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/engine/describe.h"
#include "comm/engine/operation_here.h"
#include "tutti/core/logging.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {
namespace {

/// Every rank's `mine`, by rank.
template <typename T>
std::vector<T> meet(Engine& engine, const Operation& operation, const T& mine) {
  const auto bytes = engine.meet(operation, std::as_bytes(std::span(&mine, 1)));
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

struct Offer {
  Outcome outcome;
  SegmentAddress address;
};

/// Whether all of `outcomes` are fine; else why the first is not.
bool all_fine(std::span<const Outcome> outcomes, std::string& reason) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].fine) continue;
    reason = "rank " + std::to_string(rank) + ": " + outcomes[rank].reason;
    return false;
  }
  return true;
}

struct Shared {
  SharedMemory memory;
  std::vector<SegmentAddress> addresses;  // by rank; without memory where the rank made none
};

constexpr std::size_t page_bytes = 4096;

Shared share(Engine& engine, const Operation& operation, std::size_t bytes, std::string& reason) {
  const auto ranks = static_cast<std::size_t>(engine.size());
  const std::size_t stride = bytes < huge_page_bytes ? (bytes + page_bytes - 1) / page_bytes * page_bytes : 0;
  const auto makes_memory = [&](int rank) { return stride == 0 || rank == 0; };
  Offer offer{.outcome = {}, .address = {.process = this_process()}};
  std::shared_ptr<SharedSegment> own;
  try {
    if (makes_memory(engine.rank())) {
      own = SharedSegment::create(stride > 0 ? ranks * stride : bytes);
      offer.address = own->address();
    }
  } catch (const std::system_error& error) {
    offer.outcome.note(error);
  }
  Shared shared;
  std::vector<Outcome> outcomes;
  for (const Offer& other : meet(engine, operation, offer)) {
    outcomes.push_back(other.outcome);
    shared.addresses.push_back(other.address);
  }
  if (!all_fine(outcomes, reason)) return {};

  std::vector<std::shared_ptr<SharedSegment>> segments;
  Outcome outcome;
  try {
    for (int rank = 0; rank < engine.size() && makes_memory(rank); ++rank) {
      segments.push_back(rank == engine.rank() ? own : SharedSegment::open(shared.addresses[rank]));
    }
  } catch (const std::system_error& error) {
    outcome.note(error);
  }
  if (!all_fine(meet(engine, operation, outcome), reason)) return {};
  if (own) own->close_descriptor();
  shared.memory = SharedMemory(std::move(segments), stride);
  return shared;
}

}  // namespace

SharedMemory share_memory(Engine& engine, const Operation& operation, std::size_t bytes, std::string& reason) {
  return share(engine, operation, bytes, reason).memory;
}

std::shared_ptr<SharedNode> SharedNode::connect(Engine& engine, const Operation& operation, std::string& reason) {
  Shared shared = share(engine, operation, sizeof(SharedRank), reason);
  if (shared.memory.empty()) return nullptr;
  return std::shared_ptr<SharedNode>(new SharedNode(std::move(shared.memory), engine.rank(), shared.addresses));
}

SharedNode::SharedNode(SharedMemory memory, int rank, const std::vector<SegmentAddress>& addresses)
    : memory_(std::move(memory)), rank_(rank) {
  for (const SegmentAddress& address : addresses) processes_.emplace_back(address.process);
  // Spinning helps only where the rank that is waited for runs meanwhile. A channel's thread needs a core beside the
  // thread that computes; a thread that waits for a result has one to itself.
  const auto ranks = static_cast<unsigned>(size());
  const unsigned cores = std::thread::hardware_concurrency();
  spins_ = ranks < cores ? 2000 : 50;
  looks_ = ranks <= cores ? 2000 : 0;
}

/// What a rank that waits sees of the one that it waits for.
class SharedNode::Look {
 public:
  explicit Look(const SharedNode& node) : node_(node) {}

  /// Throws TransferError when waiting for `rank` has no sense any more.
  void operator()(int rank, const Awaited& awaited, const Operation& operation) {
    // Nothing is counted before the first look: most waits are over by then.
    const auto now = Clock::now();
    if (std::exchange(rank_, rank) != rank) clock_.emplace(now);
    if (!line_) line_.emplace(now);
    const bool closed = node_.of(rank).closed.load();
    const bool due = clock_->due(now);
    const auto state = due ? node_.processes_[rank].state() : ProcessState::running;
    const bool stopped = due && clock_->look(now, state == ProcessState::stopped) >= node_.stopped_timeout_;
    // A rank that came that far and then left is no failure.
    if (node_.reached(rank, awaited)) return;
    if (node_.own().closed.load()) throw TransferError(TransferError::Kind::closed, {rank}, "this rank gave up");
    if (stopped) throw TransferError(TransferError::Kind::stopped, {rank}, "it is stopped", node_.stopped_timeout_);
    if (state == ProcessState::ended) throw TransferError(TransferError::Kind::ended, {rank}, "it is gone");
    // It posts what it has to say before it closes.
    if (closed) throw TransferError(TransferError::Kind::left, {rank}, "it is gone");
    if (!ToldElsewhere::now() && line_->due(now)) node_.say_who_is_awaited(awaited, operation, line_->waited(now), now);
  }

 private:
  const SharedNode& node_;
  int rank_ = -1;
  std::optional<StoppedClock> clock_;
  std::optional<WaitingLine> line_;
};

/// Whether it came before the deadline.
bool SharedNode::wait_for(int rank, const Awaited& awaited, const OperationWait& wait, Look& look) const {
  SharedProgress& progress = of(rank).*awaited.progress;
  return progress.wait_for(awaited.value, spins_, wait.deadline, [&] { look(rank, awaited, wait.operation); });
}

void SharedNode::wait_for_all(SharedProgress SharedRank::*progress, std::uint32_t value,
                              const OperationWait& wait) const {
  const Awaited awaited{progress, value};
  Look look(*this);
  for (int step = 1; step < size(); ++step) {
    if (wait_for((rank_ + step) % size(), awaited, wait, look)) continue;
    std::vector<int> missing;
    for (int rank = 0; rank < size(); ++rank) {
      if (!reached(rank, awaited)) missing.push_back(rank);
    }
    throw TransferError(TransferError::Kind::timeout, missing, "it did not come");
  }
}

void SharedNode::wait_for_first(SharedProgress SharedRank::*progress, std::uint32_t value,
                                const OperationWait& wait) const {
  const ToldElsewhere quiet(true);
  Look look(*this);
  if (!wait_for(0, {progress, value}, wait, look)) {
    throw TransferError(TransferError::Kind::timeout, {0}, "it did not come");
  }
}

bool SharedNode::settle_exchange(std::uint32_t number, bool made) const {
  auto& settled = of(0).exchanges_settled[number % mailboxes];
  const std::uint64_t mine = std::uint64_t{number} << 1 | (made ? 1U : 0U);
  std::uint64_t found = settled.load();
  while (found >> 1 != number) {
    if (settled.compare_exchange_weak(found, mine)) return made;
  }
  return (found & 1U) != 0;
}

std::vector<int> SharedNode::who_gave_up() const {
  // A rank leaves word of its failure before it closes.
  constexpr auto patience = std::chrono::seconds(2);
  std::vector<int> others;
  for (const auto deadline = Clock::now() + patience; Clock::now() < deadline;) {
    std::vector<int> closed;
    others.clear();
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == rank_) continue;
      others.push_back(rank);
      if (of(rank).closed.load()) closed.push_back(rank);
    }
    if (!closed.empty()) return closed;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return others;
}

void SharedNode::say_who_is_awaited(const Awaited& awaited, const Operation& operation, std::chrono::seconds waited,
                                    Deadline now) const {
  constexpr int most_named = 4;
  const auto name = [this](int rank) { return "rank " + std::to_string(names_.empty() ? rank : names_[rank]); };
  std::string absent;
  int count = 0;
  for (int rank = 0; rank < size(); ++rank) {
    if (reached(rank, awaited)) {
      if (rank < rank_) return;  // that one says it
      continue;
    }
    if (++count > most_named) continue;
    absent += (count > 1 ? "; " : "") + name(rank) + " (its last call here: " + of(rank).last_call.describe(now) + ")";
  }
  if (count > most_named) absent += "; and " + std::to_string(count - most_named) + " more";
  Logger(names_.empty() ? rank_ : names_[rank_])
      .warning(operation.describe_with_place() + " has waited for " + describe_duration(waited) + " for " + absent);
}

bool SharedNode::stands_still(bool still) const noexcept {
  own().stands_still.store(still);
  for (int rank = 0; rank < size(); ++rank) {
    // Who has let go of the channel says nothing here any more.
    if (!of(rank).stands_still.load() && !of(rank).closed.load()) return false;
  }
  return true;
}

void SharedNode::close() noexcept {
  own().closed.store(true);
}

}  // namespace tutti::comm
