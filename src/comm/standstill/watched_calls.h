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

#include "comm/engine/operation.h"
#include "comm/standstill/stand.h"

namespace tutti::comm {

/// Threads of this process that have called something, other than those that run what was left to a channel. Thread
/// safe.
class CallingThreads {
 public:
  void add(pid_t thread);
  /// Those that have not ended.
  std::set<pid_t> alive();

  /// Another number whenever a call on any channel has been made, has begun or has ended, or a thread goes on.
  std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  void change(std::memory_order order = std::memory_order_relaxed) { changes_.fetch_add(1, order); }

 private:
  std::atomic<std::uint64_t> changes_ = 0;
  std::mutex mutex_;
  std::set<pid_t> threads_;
};

/// Thread safe.
class WatchedCalls {
 public:
  WatchedCalls(std::string channel, std::vector<int> job_ranks, std::shared_ptr<CallingThreads> callers)
      : channel_(std::move(channel)), job_ranks_(std::move(job_ranks)), callers_(std::move(callers)) {}

  /// The call has been given its number.
  void called(const Operation& operation, bool on_own_thread);

  /// While it lives, its thread is inside a call. A fifth thread that is so at a time is not seen: the watch then takes
  /// it for one that may go on, and says nothing.
  class Inside {
   public:
    Inside(WatchedCalls* calls, std::uint64_t number);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    WatchedCalls* calls_;
    std::size_t place_ = 0;
  };

  /// While it lives, its thread waits until the channel's own thread has done something.
  class Awaiting {
   public:
    explicit Awaiting(WatchedCalls* calls);
    ~Awaiting();
    Awaiting(const Awaiting&) = delete;
    Awaiting& operator=(const Awaiting&) = delete;

   private:
    WatchedCalls* calls_;
  };

  /// The channel.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// Tells its other ranks whether this one stands still. Returns whether all of them say so of themselves, or it
    /// cannot be known without asking at the store.
    virtual bool stands_still(bool still) noexcept = 0;
    /// Whatever fails from now on, fails because of `why`.
    virtual void foretell(const std::string& why) noexcept = 0;
    /// Lets it fail, where nothing can ever come of the calls that are waited for.
    virtual void end() noexcept = 0;
  };
  /// With nullptr, which a channel sets before it goes, it waits until the last one is not used any more.
  void set_owner(Owner* owner);
  bool stands_still(bool still);
  void foretell(const std::string& why);
  void end();

  struct Seen {
    Stand::Channel channel;
    std::map<pid_t, Stand::Wait> inside;  ///< by thread, the call that it is inside
    std::set<pid_t> awaiting;

    /// What `thread` waits in, itself or through another thread; nullptr where it does not.
    const Stand::Wait* wait_of(pid_t thread) const;
  };
  Seen look() const;
  const std::string& channel() const { return channel_; }
  const std::vector<int>& job_ranks() const { return job_ranks_; }

 private:
  struct Place {
    std::atomic<std::uint64_t> call = 0;  // its number + 1; 0 where nobody is
    std::atomic<pid_t> thread = 0;
  };
  struct Text {
    std::string what;
    std::string name;
    CallSite where;
  };
  static constexpr std::size_t texts = 64;  // more than are ever under way

  const std::string channel_;
  const std::vector<int> job_ranks_;
  const std::shared_ptr<CallingThreads> callers_;

  std::array<Place, 4> inside_;

  mutable std::mutex mutex_;
  std::uint64_t calls_ = 0;
  pid_t last_caller_ = 0;
  std::array<Text, texts> texts_;
  std::multiset<pid_t> awaiting_;

  std::mutex owner_mutex_;
  Owner* owner_ = nullptr;
};

}  // namespace tutti::comm
