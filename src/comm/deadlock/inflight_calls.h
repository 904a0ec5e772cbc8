#pragma once
// The calls of one communicator, as the deadlock detector sees them: the number of calls made, the calls that threads
// are in, and the threads that wait for the communicator's queue thread. The flight record holds the calls' texts.
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/backend/operation.h"
#include "flight/layout.h"
#include "flight/wait_graph.h"

namespace tutti::comm {

using flight::WaitState;

/// The threads of this process that may make calls: those that have made one on any communicator, except queue threads,
/// and those that run a task of the program. Thread safe.
class CallerThreads {
 public:
  void add(pid_t thread);
  /// The threads that have not exited.
  std::set<pid_t> running();

  /// Marks its thread as one that may make calls, for the object's lifetime: it runs a submitted task or a
  /// continuation, or waits for a point-to-point message.
  class Task {
   public:
    explicit Task(std::shared_ptr<CallerThreads> threads);
    ~Task();
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;

   private:
    std::shared_ptr<CallerThreads> threads_;  // may be null
  };

  /// A number that differs after a call on any communicator was made, began or ended, or a waiting thread continued.
  std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  void change(std::memory_order order = std::memory_order_relaxed) { changes_.fetch_add(1, order); }

 private:
  std::atomic<std::uint64_t> changes_ = 0;
  std::mutex mutex_;
  std::set<pid_t> threads_;
  std::multiset<pid_t> in_task_;
};

/// Thread safe.
class InflightCalls {
 public:
  InflightCalls(std::string communicator, std::vector<int> global_ranks, std::shared_ptr<CallerThreads> callers)
      : communicator_(std::move(communicator)), global_ranks_(std::move(global_ranks)), callers_(std::move(callers)) {}

  /// Records a call, after it was given its number.
  void on_call(const Operation& operation, bool on_own_thread);

  /// Marks its thread as inside the call of `entry`, for the object's lifetime. During a call without an entry,
  /// snapshots are incomplete, and no deadlock is found.
  class InCall {
   public:
    InCall(InflightCalls* calls, flight::EntryId entry);
    ~InCall();
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;

   private:
    friend class InflightCalls;
    InflightCalls* calls_;
    flight::EntryId entry_;
    pid_t thread_ = 0;
  };

  /// Marks its thread as waiting for the communicator's queue thread, for the object's lifetime.
  class WaitingOnQueue {
   public:
    explicit WaitingOnQueue(InflightCalls* calls);
    ~WaitingOnQueue();
    WaitingOnQueue(const WaitingOnQueue&) = delete;
    WaitingOnQueue& operator=(const WaitingOnQueue&) = delete;

   private:
    InflightCalls* calls_;
  };

  /// Implemented by the communicator.
  class Listener {
   public:
    virtual ~Listener() = default;
    /// Whether the queue thread is about to run a task.
    virtual bool is_starting() const noexcept = 0;
    /// Sets the error text of all failures from now on.
    virtual void set_mismatch_reason(const std::string& why) noexcept = 0;
    /// Aborts the communicator, whose blocked calls can never complete.
    virtual void abort_blocked_calls() noexcept = 0;
  };
  /// The communicator must call it with nullptr before it is destroyed. Blocks until no thread uses the previous
  /// listener.
  void set_listener(Listener* listener);
  /// Calls `use(listener)` if there is one.
  template <typename Use>
  void with_listener(const Use& use) {
    const std::lock_guard lock(listener_mutex_);
    if (listener_ != nullptr) use(*listener_);
  }

  struct Snapshot {
    WaitState::CommunicatorCalls communicator;
    std::map<pid_t, WaitState::PendingCall> in_call;  ///< the call that a thread is inside, by thread
    std::set<pid_t> waiting_on_queue;
    bool is_complete = true;  ///< false if a thread is inside a call that is not in `in_call`

    /// The call that `thread` is blocked in, directly or through the queue thread; nullptr if it is not blocked.
    const WaitState::PendingCall* pending_call_of(pid_t thread) const;
  };
  Snapshot take_snapshot() const;
  const std::string& communicator() const { return communicator_; }
  const std::shared_ptr<CallerThreads>& callers() const { return callers_; }

 private:
  const std::string communicator_;
  const std::vector<int> global_ranks_;
  const std::shared_ptr<CallerThreads> callers_;

  mutable std::mutex mutex_;
  std::uint64_t calls_ = 0;
  pid_t last_caller_ = 0;
  std::vector<const InCall*> in_call_;
  std::multiset<pid_t> waiting_on_queue_;

  std::mutex listener_mutex_;
  Listener* listener_ = nullptr;
};

}  // namespace tutti::comm
