#include "comm/deadlock/deadlock_detector.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "comm/backend/failure_timeouts.h"
#include "comm/backend/transfer_error.h"
#include "comm/deadlock/thread_times.h"
#include "core/describe.h"
#include "core/thread_name.h"
#include "flight/wait_state_text.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

// A poll costs as much as waking a thread, so polls of a running rank are rare. The detector finds a rank blocked at
// most 1 s after its last call.
constexpr std::chrono::milliseconds call_poll_interval(400);
constexpr std::chrono::milliseconds second_poll_delay(200);
constexpr std::chrono::milliseconds blocked_poll_interval(300);
// All ranks learn of a deadlock at about the same time.
constexpr std::chrono::milliseconds deadlock_grace(250);
constexpr int polls_before_statement = 2;  // without a change

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

// One for each connection to a job: a rank has one state, however often its process connects.
class DeadlockDetector::Shared {
 public:
  Shared(std::shared_ptr<JobConnection> job, const DeadlockDetectorOptions& options)
      : job_(std::move(job)), options_(options) {
    subscription_ = job_->events()->subscribe({.on_deadlock = [this](const coordinator::Deadlock& deadlock) {
      const std::lock_guard lock(mutex_);
      found_.push_back(deadlock);
      changed_.notify_all();
    }});
    thread_ = std::thread([this] {
      name_this_thread("tutti-deadlock");
      run();
    });
  }

  ~Shared() {
    subscription_.reset();
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  std::shared_ptr<InflightCalls> add(const std::string& communicator, std::vector<int> global_ranks) {
    auto calls = std::make_shared<InflightCalls>(communicator, std::move(global_ranks), callers_);
    const std::lock_guard lock(mutex_);
    std::erase_if(communicators_, [](const auto& entry) { return entry.expired(); });
    communicators_.push_back(calls);
    return calls;
  }

 private:
  std::vector<std::shared_ptr<InflightCalls>> live_communicators() {
    std::vector<std::shared_ptr<InflightCalls>> live;
    const std::lock_guard lock(mutex_);
    for (const auto& communicator : communicators_) {
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
    blocked.state.changes = callers_->changes();
    blocked.threads = callers_->running();
    if (blocked.threads.empty()) return std::nullopt;
    std::vector<InflightCalls::Snapshot> snapshots;
    for (const auto& communicator : live) {
      bool is_starting = false;
      communicator->with_listener([&](auto& listener) { is_starting = listener.is_starting(); });
      if (is_starting) return std::nullopt;
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

  /// Returns the deadlocks that were found meanwhile; nullopt if the detector is being destroyed.
  std::optional<std::deque<coordinator::Deadlock>> sleep_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, time, [&] { return stopping_ || !found_.empty(); });
    if (stopping_) return std::nullopt;
    return std::exchange(found_, {});
  }

  void log(const std::string& deadlock) const {
    const bool never = options_.timeout == std::chrono::milliseconds::zero();
    Logger(options_.rank)
        .warning("no rank has made progress for " + describe_duration(report_delay) + ": " + deadlock +
                 " Unless another thread makes the missing call, " +
                 (never ? "the calls time out."
                        : "all ranks throw MismatchError after " + describe_duration(options_.timeout) + "."));
  }

  /// What this rank has told the coordinator.
  enum class Statement { none, blocked, agrees };

  void run() {
    std::optional<BlockedState> blocked;
    std::optional<QuietTime> quiet_time;
    std::uint64_t last_changes = 0;
    Deadline last_change = Clock::now();
    int unchanged_polls = 0;
    auto statement = Statement::none;
    auto next_poll_delay = call_poll_interval;
    while (const auto found = sleep_for(next_poll_delay)) {
      for (const auto& deadlock : *found) {
        if (!deadlock.is_certain && options_.rank == 0) log(deadlock.text);
        const bool ends_calls = deadlock.is_certain && blocked && statement == Statement::agrees;
        if (ends_calls && !end_calls(*blocked, deadlock.text)) return;
      }
      next_poll_delay = call_poll_interval;
      // A snapshot is taken only of an unchanged rank, and stays valid until the next change.
      const auto now = Clock::now();
      const auto changes = callers_->changes();
      if (std::exchange(last_changes, changes) != changes) {
        last_change = now;
        blocked.reset();
      } else if (!blocked) {
        blocked = snapshot();
        if (blocked) quiet_time.emplace(last_change, blocked->threads);
      }
      if (!blocked) {
        if (std::exchange(statement, Statement::none) != Statement::none) job_->client()->unblocked();
        unchanged_polls = 0;
        continue;
      }
      quiet_time->poll(now);
      if (++unchanged_polls < polls_before_statement) {
        next_poll_delay = second_poll_delay;
        continue;
      }
      const bool agrees =
          options_.timeout > std::chrono::milliseconds::zero() && quiet_time->quiet(now) >= options_.timeout;
      const auto next = agrees ? Statement::agrees : Statement::blocked;
      if (std::exchange(statement, next) != next) {
        const auto blocked_for = std::chrono::duration_cast<std::chrono::milliseconds>(quiet_time->blocked(now));
        job_->client()->blocked(to_text(blocked->state), agrees, blocked_for);
      }
      next_poll_delay = blocked_poll_interval;
    }
    if (statement != Statement::none) job_->client()->unblocked();
  }

  /// Returns false if the detector is being destroyed.
  bool end_calls(const BlockedState& blocked, const std::string& why) {
    // Calls that end here because another rank has aborted them then report the same text.
    for (const auto& communicator : blocked.communicators) {
      communicator->with_listener([&](auto& listener) { listener.set_mismatch_reason(why); });
    }
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, deadlock_grace, [&] { return stopping_; })) return false;
    }
    for (const auto& communicator : blocked.communicators) {
      communicator->with_listener([](auto& listener) { listener.abort_blocked_calls(); });
    }
    return true;
  }

  const std::shared_ptr<JobConnection> job_;
  const DeadlockDetectorOptions options_;
  const std::shared_ptr<CallerThreads> callers_ = std::make_shared<CallerThreads>();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<coordinator::Deadlock> found_;
  std::vector<std::weak_ptr<InflightCalls>> communicators_;

  std::shared_ptr<void> subscription_;
  std::thread thread_;
};

std::shared_ptr<DeadlockDetector::Shared> DeadlockDetector::shared_of(const Rendezvous& rendezvous,
                                                                      const DeadlockDetectorOptions& options) {
  static std::mutex mutex;
  static std::map<const JobConnection*, std::weak_ptr<Shared>> all;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto& known = all[rendezvous.job.get()];
  if (auto shared = known.lock()) return shared;
  auto shared = std::make_shared<Shared>(rendezvous.job, options);
  known = shared;
  return shared;
}

DeadlockDetector::DeadlockDetector(const Rendezvous& rendezvous, const DeadlockDetectorOptions& options)
    : shared_(shared_of(rendezvous, options)) {
  const auto connect = rendezvous.group.substr(rendezvous.group.rfind('/') + 1);
  if (connect != "1") suffix_ = " (connect " + connect + ")";
}

std::shared_ptr<InflightCalls> DeadlockDetector::add_communicator(const std::string& communicator,
                                                                  std::vector<int> global_ranks) {
  return shared_->add(communicator + suffix_, std::move(global_ranks));
}

}  // namespace tutti::comm
