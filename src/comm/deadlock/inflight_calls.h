#pragma once
// What the watch over a process sees of one channel: how many calls it has made, which ones threads are inside now, and
// which threads wait for the channel's own thread.
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/backend/operation.h"
#include "comm/deadlock/wait_state.h"

namespace tutti::comm {

/// Threads of this process that have called something, other than those that run what was left to a channel. Thread
/// safe.
class CallerThreads {
 public:
  void add(pid_t thread);
  /// Those that have not ended.
  std::set<pid_t> running();

  /// Another number whenever a call on any channel has been made, has begun or has ended, or a thread goes on.
  std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  void change(std::memory_order order = std::memory_order_relaxed) { changes_.fetch_add(1, order); }

 private:
  std::atomic<std::uint64_t> changes_ = 0;
  std::mutex mutex_;
  std::set<pid_t> threads_;
};

/// Thread safe.
class InflightCalls {
 public:
  InflightCalls(std::string communicator, std::vector<int> global_ranks, std::shared_ptr<CallerThreads> callers)
      : communicator_(std::move(communicator)), global_ranks_(std::move(global_ranks)), callers_(std::move(callers)) {}

  /// The call has been given its number.
  void on_call(const Operation& operation, bool on_own_thread);

  /// While it lives, its thread is inside a call. A fifth thread that is so at a time is not seen: the watch then takes
  /// it for one that may go on, and says nothing.
  class InCall {
   public:
    InCall(InflightCalls* calls, std::uint64_t number);
    ~InCall();
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;

   private:
    InflightCalls* calls_;
    std::size_t slot_ = 0;
  };

  /// While it lives, its thread waits until the channel's own thread has done something.
  class WaitingOnQueue {
   public:
    explicit WaitingOnQueue(InflightCalls* calls);
    ~WaitingOnQueue();
    WaitingOnQueue(const WaitingOnQueue&) = delete;
    WaitingOnQueue& operator=(const WaitingOnQueue&) = delete;

   private:
    InflightCalls* calls_;
  };

  /// The channel.
  class Listener {
   public:
    virtual ~Listener() = default;
    /// Tells its other ranks whether this one stands still. Returns whether all of them say so of themselves, or it
    /// cannot be known without asking at the store.
    virtual bool set_blocked(bool blocked) noexcept = 0;
    /// Whatever fails from now on, fails because of `why`.
    virtual void set_mismatch_reason(const std::string& why) noexcept = 0;
    /// Lets it fail, where nothing can ever come of the calls that are waited for.
    virtual void abort_blocked_calls() noexcept = 0;
  };
  /// With nullptr, which a channel sets before it goes, it waits until the last one is not used any more.
  void set_listener(Listener* listener);
  bool set_blocked(bool blocked);
  void set_mismatch_reason(const std::string& why);
  void abort_blocked_calls();

  struct Snapshot {
    WaitState::CommunicatorCalls communicator;
    std::map<pid_t, WaitState::PendingCall> in_call;  ///< by thread, the call that it is inside
    std::set<pid_t> waiting_on_queue;

    /// What `thread` waits in, itself or through another thread; nullptr where it does not.
    const WaitState::PendingCall* pending_call_of(pid_t thread) const;
  };
  Snapshot take_snapshot() const;
  const std::string& communicator() const { return communicator_; }
  const std::vector<int>& global_ranks() const { return global_ranks_; }

 private:
  struct Slot {
    std::atomic<std::uint64_t> call = 0;  // its number + 1; 0 where nobody is
    std::atomic<pid_t> thread = 0;
  };
  struct CallText {
    std::string what;
    std::string name;
    CallSite where;
  };
  static constexpr std::size_t max_texts = 64;  // more than are ever under way

  const std::string communicator_;
  const std::vector<int> global_ranks_;
  const std::shared_ptr<CallerThreads> callers_;

  std::array<Slot, 4> in_call_;

  mutable std::mutex mutex_;
  std::uint64_t calls_ = 0;
  pid_t last_caller_ = 0;
  std::array<CallText, max_texts> texts_;
  std::multiset<pid_t> waiting_on_queue_;

  std::mutex listener_mutex_;
  Listener* listener_ = nullptr;
};

}  // namespace tutti::comm
