#include "comm/deadlock/deadlock_detector.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "comm/backend/failure_timeouts.h"
#include "comm/backend/transfer_error.h"
#include "comm/deadlock/thread_times.h"
#include "comm/rendezvous/store_bytes.h"
#include "core/describe.h"
#include "core/thread_name.h"
#include "flight/wait_state_text.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

// A poll costs as much as waking a thread, so polls of a running rank are rare. The detector finds a rank blocked at
// most 1 s after its last call, and its node 0.1 s later.
constexpr auto call_poll_interval = std::chrono::milliseconds(400);
constexpr auto second_poll_delay = std::chrono::milliseconds(200);
constexpr auto node_poll_interval = std::chrono::milliseconds(100);
// Ranks in a deadlock mostly block at about the same time, so a rank that is blocked for longer polls the store less
// often.
constexpr auto first_store_poll_interval = std::chrono::milliseconds(300);
constexpr auto later_store_poll_interval = std::chrono::milliseconds(600);
constexpr int first_store_polls = 10;
// Ranks in a deadlock mostly agree at about the same time. Later polls are rarer, but closer than the grace.
constexpr auto agreement_poll_interval = std::chrono::milliseconds(50);
constexpr auto later_agreement_poll_interval = std::chrono::milliseconds(150);
constexpr int first_agreement_polls = 40;
constexpr auto agreement_grace = std::chrono::milliseconds(250);
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
    if (agreed_) {
      return agreement_polls_ < first_agreement_polls ? agreement_poll_interval : later_agreement_poll_interval;
    }
    return polls_ < first_store_polls ? first_store_poll_interval : later_store_poll_interval;
  }

  void cast(const std::string& text) {
    store_->set(ballot_key(rank_), as_bytes(text));
    store_->add(count_key, version_step + 1);
    is_cast_ = true;
  }

  void withdraw() {
    disagree();
    is_cast_ = false;
    store_->add(count_key, -1);
  }

  /// The error text of the deadlock that the states of all ranks show; nullopt if they show none. Call it repeatedly
  /// while this rank is blocked.
  const std::optional<std::string>& find() {
    ++polls_;
    const auto published = store_->add(count_key, 0);
    if (published % version_step < size_) {
      disagree();
      deadlock_.reset();
      evaluated_ = 0;
    } else if (std::exchange(evaluated_, published / version_step) != published / version_step) {
      disagree();
      evaluate();
    }
    return deadlock_;
  }

  /// Publishes that this rank agrees on the deadlock that find() has returned. Returns true if all ranks agree.
  bool agree() {
    ++agreement_polls_;
    return store_->add(agreement_key_, std::exchange(agreed_, true) ? 0 : 1) >= size_;
  }
  void disagree() {
    if (std::exchange(agreed_, false)) store_->add(agreement_key_, -1);
    agreement_polls_ = 0;
  }

 private:
  // The number of ranks that have published, and a multiple of this for each publication.
  static constexpr const char* count_key = "deadlock/count";
  static constexpr std::int64_t version_step = 1 << 20;

  void evaluate() {
    deadlock_.reset();
    std::vector<WaitState> states;
    std::string all;
    for (const auto& bytes : store_->multiGet(keys_)) {
      const std::string text = as_text(bytes);
      auto state = flight::wait_state_from_text(text);
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
  std::int64_t evaluated_ = 0;           // the version of the states that deadlock_ belongs to
  std::optional<std::string> deadlock_;  // found by this rank, after all ranks have published their state
  std::string agreement_key_;
  bool agreed_ = false;
  int agreement_polls_ = 0;
};

// How long this rank has been blocked, and how long no thread of the program has used CPU time meanwhile.
class QuietTime {
 public:
  QuietTime(Deadline last_change, std::set<pid_t> blocked_threads)
      : blocked_threads_(std::move(blocked_threads)), blocked_since_(last_change) {}

  /// Call it at every poll while the rank is blocked in the same calls.
  void poll(Deadline now) {
    auto times = idle_thread_times(blocked_threads_);
    if (times && times == times_) return;
    times_ = std::move(times);
    quiet_since_ = now;
  }

  Clock::duration blocked(Deadline now) const { return now - blocked_since_; }
  Clock::duration quiet(Deadline now) const { return now - quiet_since_; }

 private:
  std::set<pid_t> blocked_threads_;
  Deadline blocked_since_;
  Deadline quiet_since_;
  std::optional<ThreadTimes> times_;
};

}  // namespace

// The state that the thread shares with the detector. A request to an unreachable store ends only with the connection,
// so the destructor does not wait for the thread beyond detector_shutdown_timeout.
struct DeadlockDetector::Shared {
  Shared(Rendezvous rendezvous_, const DeadlockDetectorOptions& options_)
      : rendezvous(std::move(rendezvous_)), options(options_) {}

  const Rendezvous rendezvous;
  const DeadlockDetectorOptions options;
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
    std::set<pid_t> threads;                                    // in blocked calls

    void add(const WaitState::PendingCall& call, const std::shared_ptr<InflightCalls>& communicator) {
      if (std::ranges::find(state.pending_calls, call) != state.pending_calls.end()) return;
      state.pending_calls.push_back(call);
      communicators.push_back(communicator);
    }
  };
  /// The wait state of this rank; nullopt unless all threads that may make calls are blocked in a call.
  std::optional<BlockedState> snapshot() {
    const auto live = live_communicators();
    BlockedState blocked;
    blocked.state.changes = callers->changes();
    blocked.threads = callers->running();
    if (blocked.threads.empty()) return std::nullopt;
    std::vector<InflightCalls::Snapshot> snapshots;
    for (const auto& communicator : live) {
      if (communicator->is_starting()) return std::nullopt;
      snapshots.push_back(communicator->take_snapshot());
      if (!snapshots.back().is_complete) return std::nullopt;
      blocked.state.communicators[communicator->communicator()] = snapshots.back().communicator;
    }
    for (const auto thread : blocked.threads) {
      const WaitState::PendingCall* call = nullptr;
      for (std::size_t index = 0; index < live.size() && call == nullptr; ++index) {
        call = snapshots[index].pending_call_of(thread);
        if (call != nullptr) blocked.add(*call, live[index]);
      }
      if (call == nullptr) return std::nullopt;
    }
    // A call that no thread waits for may complete too, and its continuation may then make the missing call.
    for (std::size_t index = 0; index < live.size(); ++index) {
      for (const auto& [thread, call] : snapshots[index].in_call) {
        blocked.add(call, live[index]);
        blocked.threads.insert(thread);
      }
    }
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

  bool is_log_due() const {
    const bool error_comes_first =
        options.timeout > std::chrono::milliseconds::zero() && options.timeout <= report_delay;
    return options.rank == 0 && !error_comes_first;
  }

  void log(const std::string& deadlock) const {
    const bool never = options.timeout == std::chrono::milliseconds::zero();
    Logger(options.rank)
        .warning("no rank has made progress for " + describe_duration(report_delay) + ": " + deadlock +
                 " Unless another thread makes the missing call, " +
                 (never ? "the calls time out."
                        : "all ranks throw MismatchError after " + describe_duration(options.timeout) + "."));
  }

  void run() {
    try {
      std::optional<Ballot> ballot;  // has a connection to the store, so it is created when needed
      std::optional<BlockedState> blocked;
      std::optional<QuietTime> quiet_time;
      std::uint64_t last_changes = 0;
      Deadline last_change = Clock::now();
      int unchanged_polls = 0;
      bool is_logged = false;
      auto next_poll_delay = call_poll_interval;
      while (sleep_for(next_poll_delay)) {
        next_poll_delay = call_poll_interval;
        if (options.may_disconnect_store) drop_idle_connections(rendezvous);
        // A snapshot is taken only of an unchanged rank, and stays valid until the next change.
        const auto now = Clock::now();
        const auto changes = callers->changes();
        if (std::exchange(last_changes, changes) != changes) {
          last_change = now;
          blocked.reset();
        } else if (!blocked) {
          blocked = snapshot();
          if (blocked) quiet_time.emplace(last_change, blocked->threads);
        }
        if (!blocked) {
          if (ballot && ballot->is_cast()) ballot->withdraw();
          ballot.reset();  // closes its connection
          if (unchanged_polls >= polls_before_ballot) broadcast_blocked(false);
          unchanged_polls = 0;
          is_logged = false;
          continue;
        }
        quiet_time->poll(now);
        if (++unchanged_polls < polls_before_ballot) {
          next_poll_delay = second_poll_delay;
          continue;
        }
        if (!broadcast_blocked(true)) {
          next_poll_delay = node_poll_interval;
          continue;
        }
        if (!ballot) ballot.emplace(rendezvous.store->clone(), options.rank, options.size);
        if (!ballot->is_cast()) ballot->cast(flight::to_text(blocked->state));
        const auto& deadlock = ballot->find();
        next_poll_delay = ballot->next_store_poll_delay();
        if (!deadlock) continue;
        if (is_log_due() && !is_logged && quiet_time->blocked(now) >= report_delay) {
          log(*deadlock);
          is_logged = true;
        }
        if (options.timeout == std::chrono::milliseconds::zero() || quiet_time->quiet(now) < options.timeout) {
          ballot->disagree();
          continue;
        }
        const bool all_agree = ballot->agree();
        next_poll_delay = ballot->next_store_poll_delay();
        if (!all_agree) continue;
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

DeadlockDetector::DeadlockDetector(const Rendezvous& rendezvous, const DeadlockDetectorOptions& options)
    : shared_(std::make_shared<Shared>(rendezvous, options)) {
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
