#include "comm/deadlock/deadlock_detector.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "comm/rendezvous/store_bytes.h"
#include "core/thread_name.h"

namespace tutti::comm {
namespace {

// A poll costs as much as waking a thread, so polls of a running rank are rare. The detector finds a rank blocked at
// most 1 s after its last call, and its node 0.1 s later. All ranks receive the deadlock within another 0.9 s.
constexpr auto call_poll_interval = std::chrono::milliseconds(400);
constexpr auto second_poll_delay = std::chrono::milliseconds(200);
constexpr auto node_poll_interval = std::chrono::milliseconds(100);
// Ranks in a deadlock mostly block at about the same time, so a rank that is blocked for longer polls the store less
// often.
constexpr auto first_store_poll_interval = std::chrono::milliseconds(300);
constexpr auto later_store_poll_interval = std::chrono::milliseconds(600);
constexpr int first_store_polls = 10;
constexpr auto agreement_poll_interval = std::chrono::milliseconds(50);
constexpr auto agreement_grace = std::chrono::milliseconds(200);
constexpr auto detector_shutdown_timeout = std::chrono::milliseconds(300);
constexpr int polls_before_ballot = 2;  // without a change

std::string ballot_key(int rank) {
  return "deadlock/" + std::to_string(rank);
}

// The wait state that this rank has published in the store, and the agreement of all ranks on a deadlock.
class Ballot {
 public:
  Ballot(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {
    for (int voter = 0; voter < size; ++voter) keys_.push_back(ballot_key(voter));
  }

  bool is_cast() const { return is_cast_; }
  std::chrono::milliseconds next_store_poll_delay() const {
    if (deadlock_) return agreement_poll_interval;
    return polls_ < first_store_polls ? first_store_poll_interval : later_store_poll_interval;
  }

  void cast(const std::string& text) {
    store_->set(ballot_key(rank_), as_bytes(text));
    store_->add(count_key, 1);
    is_cast_ = true;
  }

  void withdraw() {
    is_cast_ = false;
    deadlock_.reset();
    store_->add(count_key, -1);
  }

  /// Polls the store; call it repeatedly while this rank is blocked. Returns the error text when all ranks agree on the
  /// deadlock.
  std::optional<std::string> agreed_deadlock() {
    ++polls_;
    if (!deadlock_) {
      if (store_->add(count_key, 0) < size_) return std::nullopt;
      evaluate();
      if (deadlock_) store_->add(agreement_key_, 1);
    }
    if (!deadlock_ || store_->add(agreement_key_, 0) < size_) return std::nullopt;
    return deadlock_;
  }

 private:
  static constexpr const char* count_key = "deadlock/count";

  void evaluate() {
    std::vector<WaitState> states;
    std::string all;
    for (const auto& bytes : store_->multiGet(keys_)) {
      const std::string text = as_text(bytes);
      auto state = wait_state_from_text(text);
      if (!state) return;
      states.push_back(*std::move(state));
      all += text;
    }
    deadlock_ = find_deadlock(states);
    agreement_key_ = "deadlock/agreed/" + std::to_string(std::hash<std::string>{}(all));
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  std::vector<std::string> keys_;
  bool is_cast_ = false;
  int polls_ = 0;
  std::optional<std::string> deadlock_;  // found by this rank, after all ranks have published their state
  std::string agreement_key_;
};

}  // namespace

// The state that the thread shares with the detector. A request to an unreachable store ends only with the connection,
// so the destructor does not wait for the thread beyond detector_shutdown_timeout.
struct DeadlockDetector::Shared {
  Shared(Rendezvous rendezvous_, int rank_, int size_, bool may_disconnect_store_)
      : rendezvous(std::move(rendezvous_)), rank(rank_), size(size_), may_disconnect_store(may_disconnect_store_) {}

  const Rendezvous rendezvous;
  const int rank;
  const int size;
  const bool may_disconnect_store;
  const std::shared_ptr<CallerThreads> callers = std::make_shared<CallerThreads>();

  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  bool running = true;
  std::vector<std::weak_ptr<InflightCalls>> communicators;
  std::weak_ptr<InflightCalls> job_communicator;  // the communicator of all ranks

  std::vector<std::shared_ptr<InflightCalls>> live_communicators() {
    std::vector<std::shared_ptr<InflightCalls>> live;
    const std::lock_guard lock(mutex);
    for (const auto& communicator : communicators) {
      if (auto calls = communicator.lock()) live.push_back(std::move(calls));
    }
    return live;
  }

  struct BlockedState {
    WaitState state;
    std::vector<std::shared_ptr<InflightCalls>> communicators;  // with blocked calls
  };
  /// The wait state of this rank; nullopt unless all of its calling threads are blocked in a call.
  std::optional<BlockedState> snapshot() {
    const auto live = live_communicators();
    const auto threads = callers->running();
    if (threads.empty()) return std::nullopt;
    WaitState state;
    state.changes = callers->changes();
    std::vector<InflightCalls::Snapshot> snapshots;
    for (const auto& communicator : live) {
      snapshots.push_back(communicator->take_snapshot());
      state.communicators[communicator->communicator()] = snapshots.back().communicator;
    }
    BlockedState blocked;
    for (const auto thread : threads) {
      const WaitState::PendingCall* call = nullptr;
      for (std::size_t index = 0; index < live.size() && call == nullptr; ++index) {
        call = snapshots[index].pending_call_of(thread);
        if (call != nullptr) blocked.communicators.push_back(live[index]);
      }
      if (call == nullptr) return std::nullopt;
      state.pending_calls.push_back(*call);
    }
    blocked.state = std::move(state);
    return blocked;
  }

  /// Publishes to all ranks whether this rank is blocked. Returns false if some rank is known not to be blocked: then
  /// the store need not be polled.
  bool broadcast_blocked(bool is_blocked) {
    std::unique_lock lock(mutex);
    const auto all_ranks = job_communicator.lock();
    lock.unlock();
    return !all_ranks || all_ranks->set_blocked(is_blocked);
  }

  /// Returns false if the detector is being destroyed.
  bool sleep_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex);
    return !changed.wait_for(lock, time, [&] { return stopping; });
  }

  void run() {
    try {
      std::optional<Ballot> ballot;  // has a connection to the store, so it is created when needed
      std::optional<BlockedState> blocked;
      std::uint64_t last_changes = 0;
      int unchanged_polls = 0;
      auto next_poll_delay = call_poll_interval;
      while (sleep_for(next_poll_delay)) {
        next_poll_delay = call_poll_interval;
        if (may_disconnect_store) drop_idle_connections(rendezvous);
        // A snapshot is taken only of an unchanged rank, and stays valid until the next change.
        const auto changes = callers->changes();
        if (std::exchange(last_changes, changes) != changes) {
          blocked.reset();
        } else if (!blocked) {
          blocked = snapshot();
        }
        if (!blocked) {
          if (ballot && ballot->is_cast()) ballot->withdraw();
          ballot.reset();  // closes its connection
          if (unchanged_polls >= polls_before_ballot) broadcast_blocked(false);
          unchanged_polls = 0;
          continue;
        }
        if (++unchanged_polls < polls_before_ballot) {
          next_poll_delay = second_poll_delay;
          continue;
        }
        if (!broadcast_blocked(true)) {
          next_poll_delay = node_poll_interval;
          continue;
        }
        if (!ballot) ballot.emplace(rendezvous.store->clone(), rank, size);
        if (!ballot->is_cast()) ballot->cast(to_text(blocked->state));
        const auto deadlock = ballot->agreed_deadlock();
        // All ranks that are known here are blocked, so agreement is near.
        next_poll_delay = may_disconnect_store ? agreement_poll_interval : ballot->next_store_poll_delay();
        if (!deadlock) continue;
        // Calls that end here because an earlier rank has aborted them then report the same text.
        for (const auto& communicator : blocked->communicators) communicator->set_mismatch_reason(*deadlock);
        if (!sleep_for(agreement_grace)) return;
        for (const auto& communicator : blocked->communicators) communicator->abort_blocked_calls();
        return;
      }
      if (ballot && ballot->is_cast()) ballot->withdraw();
    } catch (const std::exception&) {
      // The process that serves the store has exited.
    }
  }
};

DeadlockDetector::DeadlockDetector(const Rendezvous& rendezvous, int rank, int size, bool may_disconnect_store)
    : shared_(std::make_shared<Shared>(rendezvous, rank, size, may_disconnect_store)) {
  std::thread([shared = shared_] {
    name_this_thread("tutti-deadlock");
    shared->run();
    const std::lock_guard lock(shared->mutex);
    shared->running = false;
    shared->changed.notify_all();
  }).detach();
}

DeadlockDetector::~DeadlockDetector() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, detector_shutdown_timeout, [&] { return !shared_->running; });
}

std::shared_ptr<InflightCalls> DeadlockDetector::add_communicator(const std::string& communicator,
                                                                  std::vector<int> global_ranks) {
  auto calls = std::make_shared<InflightCalls>(communicator, std::move(global_ranks), shared_->callers);
  const std::lock_guard lock(shared_->mutex);
  if (shared_->communicators.empty()) shared_->job_communicator = calls;
  std::erase_if(shared_->communicators, [](const auto& entry) { return entry.expired(); });
  shared_->communicators.push_back(calls);
  return calls;
}

}  // namespace tutti::comm
