#include "comm/shm/node_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>

#include "comm/backend/current_operation.h"
#include "comm/backend/describe.h"
#include "comm/backend/topology.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

/// Every rank's `local_value`, by rank.
template <typename T>
std::vector<T> gather_values_of(Backend& backend, const Operation& operation, const T& local_value) {
  const auto bytes = backend.bootstrap_all_gather(operation, std::as_bytes(std::span(&local_value, 1)));
  std::vector<T> all(static_cast<std::size_t>(backend.size()));
  if (bytes.size() != all.size() * sizeof(T)) {
    throw PeerError(
        "Unexpected data from other ranks: they run another version of tutti, or another program uses the same "
        "coordinator.",
        {});
  }
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

struct Status {
  char failed = 0;  // not a bool, because a peer sends it
  std::array<char, 127> reason{};

  void set_error(const std::exception& error) {
    failed = 1;
    const std::string_view text = error.what();
    std::ranges::copy(text.substr(0, reason.size()), reason.begin());
  }
  std::string text() const { return {reason.begin(), std::ranges::find(reason, '\0')}; }
};

struct SegmentOffer {
  Status status;
  SegmentAddress address;
};

/// True if none of `statuses` has failed; otherwise sets `reason` from the first one that is not.
bool all_ok(std::span<const Status> statuses, std::string& reason) {
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    if (statuses[rank].failed == 0) continue;
    reason = "rank " + std::to_string(rank) + ": " + statuses[rank].text();
    return false;
  }
  return true;
}

struct MappedMemory {
  SharedMemory memory;
  std::vector<SegmentAddress> addresses;  // by rank; only `process` is set if the rank created no segment
};

constexpr std::size_t page_bytes = 4096;

MappedMemory create_and_map(Backend& backend, const Operation& operation, std::size_t bytes, std::string& reason) {
  const auto ranks = static_cast<std::size_t>(backend.size());
  const std::size_t stride = bytes < huge_page_bytes ? (bytes + page_bytes - 1) / page_bytes * page_bytes : 0;
  const auto creates_memory = [&](int rank) { return stride == 0 || rank == 0; };
  SegmentOffer offer{.status = {}, .address = {.process = this_process()}};
  const std::size_t segment_bytes = stride > 0 ? ranks * stride : bytes;
  std::shared_ptr<SharedSegment> local_segment;
  try {
    if (creates_memory(backend.rank())) {
      local_segment = SharedSegment::create(segment_bytes);
      offer.address = local_segment->address();
    }
  } catch (const std::system_error& error) {
    offer.status.set_error(error);
  }
  MappedMemory mapped;
  std::vector<Status> statuses;
  for (const SegmentOffer& peer : gather_values_of(backend, operation, offer)) {
    statuses.push_back(peer.status);
    mapped.addresses.push_back(peer.address);
  }
  if (!all_ok(statuses, reason)) return {};

  std::vector<std::shared_ptr<SharedSegment>> segments;
  Status status;
  try {
    for (int rank = 0; rank < backend.size() && creates_memory(rank); ++rank) {
      segments.push_back(rank == backend.rank() ? local_segment
                                                : SharedSegment::open(mapped.addresses[rank], segment_bytes));
    }
  } catch (const std::system_error& error) {
    status.set_error(error);
  }
  if (!all_ok(gather_values_of(backend, operation, status), reason)) return {};
  if (local_segment) local_segment->close_descriptor();
  mapped.memory = SharedMemory(std::move(segments), stride);
  return mapped;
}

}  // namespace

SharedMemory create_shared_memory(Backend& backend, const Operation& operation, std::size_t bytes,
                                  std::string& reason) {
  return create_and_map(backend, operation, bytes, reason).memory;
}

std::shared_ptr<NodeState> NodeState::connect(Backend& backend, std::shared_ptr<const PeerHealth> health,
                                              const Operation& operation, std::string& reason) {
  MappedMemory mapped = create_and_map(backend, operation, sizeof(RankState), reason);
  if (mapped.memory.empty()) return nullptr;
  return std::shared_ptr<NodeState>(
      new NodeState(std::move(mapped.memory), backend.rank(), mapped.addresses, std::move(health)));
}

NodeState::NodeState(SharedMemory memory, int rank, const std::vector<SegmentAddress>& addresses,
                     std::shared_ptr<const PeerHealth> health)
    : memory_(std::move(memory)), rank_(rank), health_(std::move(health)) {
  for (const SegmentAddress& address : addresses) processes_.emplace_back(address.process);
  // Spinning helps only if the awaited rank runs at the same time. The queue thread needs a core beside the thread that
  // computes. A thread that waits for a result has a core to itself, because it does not compute meanwhile.
  const auto ranks = static_cast<unsigned>(size());
  const unsigned cores = std::thread::hardware_concurrency();
  queue_spin_count_ = ranks < cores ? 2000 : 50;
  spin_count_ = ranks <= cores ? 2000 : 0;
}

/// Checks the awaited rank while this rank waits.
class NodeState::PeerCheck {
 public:
  explicit PeerCheck(const NodeState& node) : node_(node) {}

  /// Throws TransferError if `rank` cannot reach `awaited` any more. Logs a warning if one is due.
  void operator()(int rank, const AwaitedCounter& awaited, const Operation& operation) {
    // The warning's time begins with the first check, because most waits end before it.
    const auto now = Clock::now();
    if (!warning_) warning_.emplace(now);
    const bool looks = std::exchange(rank_, rank) != rank || now >= next_look_;
    if (looks) next_look_ = now + look_interval;
    const bool closed = node_.of(rank).closed.load();
    const bool process_exited = looks && node_.processes_[rank].has_exited();
    const bool exited = process_exited || (looks && node_.health_->peer_exited(rank));
    // A rank that has reached the value and closed the communicator since then has not failed. Its state was read
    // above, before this check.
    if (node_.reached(rank, awaited)) return;
    if (node_.local().closed.load())
      throw TransferError(TransferError::Kind::connection_closed, {rank}, "this rank has closed the communicator");
    if (closed && !process_exited)
      throw TransferError(TransferError::Kind::connection_closed, {rank}, "the peer has closed the communicator");
    if (exited) throw TransferError(TransferError::Kind::process_exited, {rank}, "process exited");
    if (looks) node_.health_->throw_if_peers_failed();
    if (!SuppressSlowWarning::is_active() && warning_->due(now))
      node_.log_slow_peers(awaited, operation, warning_->waited(now), now);
  }

 private:
  static constexpr auto look_interval = std::chrono::milliseconds(50);

  const NodeState& node_;
  int rank_ = -1;
  Deadline next_look_{};
  std::optional<SlowOperationWarning> warning_;
};

/// Returns false at the deadline.
bool NodeState::wait_for(int rank, const AwaitedCounter& awaited, const OperationDeadline& wait,
                         PeerCheck& check) const {
  SequenceCounter& counter = of(rank).*awaited.counter;
  return counter.wait_for(awaited.value, queue_spin_count_, wait.deadline,
                          [&] { check(rank, awaited, wait.operation); });
}

void NodeState::wait_for_all(SequenceCounter RankState::*counter, std::uint32_t value,
                             const OperationDeadline& wait) const {
  const AwaitedCounter awaited{counter, value};
  PeerCheck check(*this);
  for (int step = 1; step < size(); ++step) {
    if (wait_for((rank_ + step) % size(), awaited, wait, check)) continue;
    std::vector<int> missing;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != rank_ && !reached(rank, awaited)) missing.push_back(rank);
    }
    if (missing.empty()) return;  // they have come since
    throw TransferError(TransferError::Kind::timeout, missing, "it did not enter the call");
  }
}

void NodeState::wait_for_leader(SequenceCounter RankState::*counter, std::uint32_t value,
                                const OperationDeadline& wait) const {
  const SuppressSlowWarning quiet(true);
  PeerCheck check(*this);
  if (!wait_for(0, {counter, value}, wait, check)) {
    throw TransferError(TransferError::Kind::timeout, {0}, "it did not enter the call");
  }
}

bool NodeState::decide_all_gather(std::uint32_t number, bool completed) const {
  auto& decision = of(0).all_gathers_decided[number % payload_slots];
  const std::uint64_t local_value = std::uint64_t{number} << 1 | (completed ? 1U : 0U);
  std::uint64_t found = decision.load();
  while (found >> 1 != number) {
    if (decision.compare_exchange_weak(found, local_value)) return completed;
  }
  return (found & 1U) != 0;
}

std::vector<int> NodeState::closed_ranks() {
  constexpr auto close_timeout = std::chrono::seconds(2);
  for (const auto deadline = Clock::now() + close_timeout; Clock::now() < deadline;) {
    auto closed = exited_ranks();
    std::erase(closed, rank_);
    if (!closed.empty()) return closed;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  auto peers = all_ranks(size());
  std::erase(peers, rank_);
  return peers;
}

void NodeState::log_slow_peers(const AwaitedCounter& awaited, const Operation& operation, std::chrono::seconds waited,
                               Deadline now) const {
  constexpr int max_named = 4;
  const auto name = [&](int rank) { return "rank " + std::to_string(operation.job_ranks.of(global_rank(rank))); };
  std::string absent;
  int count = 0;
  for (int rank = 0; rank < size(); ++rank) {
    if (reached(rank, awaited)) {
      if (rank < rank_) return;  // the lowest waiting rank logs
      continue;
    }
    if (++count > max_named) continue;
    absent +=
        (count > 1 ? "; " : "") + name(rank) + " (its last call here: " + of(rank).last_operation.describe(now) + ")";
  }
  if (count > max_named) absent += "; and " + std::to_string(count - max_named) + " more";
  Logger(operation.job_ranks.of(global_rank(rank_)))
      .warning(operation.describe_with_call_site() + " has waited for " + describe_duration(waited) + " for " + absent);
}

void NodeState::close() noexcept {
  local().closed.store(true);
}

void NodeState::publish(int rank, const std::string& text) {
  RankState& state = of(rank);
  const auto length = static_cast<std::uint32_t>(std::min(text.size(), sizeof(state.failure_message)));
  std::copy_n(text.data(), length, state.failure_message);
  state.failure_message_length.store(length, std::memory_order_release);
}

std::vector<std::optional<std::string>> NodeState::read() {
  std::vector<std::optional<std::string>> messages(static_cast<std::size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) {
    const RankState& state = of(rank);
    const auto length = std::min<std::size_t>(state.failure_message_length.load(std::memory_order_acquire),
                                              sizeof(state.failure_message));
    if (length > 0) messages[static_cast<std::size_t>(rank)].emplace(state.failure_message, length);
  }
  return messages;
}

// A rank publishes its report before it closes the communicator.
std::vector<int> NodeState::exited_ranks() {
  std::vector<int> closed;
  for (int rank = 0; rank < size(); ++rank) {
    if (of(rank).closed.load()) closed.push_back(rank);
  }
  return closed;
}

}  // namespace tutti::comm
