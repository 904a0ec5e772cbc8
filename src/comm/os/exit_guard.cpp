#include "comm/os/exit_guard.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "core/in_this_process.h"
#include "device/devices.h"

namespace tutti::comm {
namespace {

constexpr auto max_exit_delay = std::chrono::seconds(30);

class GuardCount {
 public:
  // The threads that the process waits for use static objects of LibTorch that this call constructs. They must be
  // constructed before this object, so that they are destroyed after it.
  GuardCount() { (void)devices::accelerator_type(); }
  ~GuardCount() {
    if (!in_this_process_) return;  // the threads that the guards are for are not in a forked child
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, max_exit_delay, [&] { return count_ == 0; });
  }
  GuardCount(const GuardCount&) = delete;
  GuardCount& operator=(const GuardCount&) = delete;

  void add(int count) {
    // Notify with the mutex held: once it is released at count 0, the process may exit.
    const std::lock_guard lock(mutex_);
    count_ += count;
    if (count_ == 0) changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
  InThisProcess in_this_process_;
};

// A static object, because its destructor delays the exit of the process.
GuardCount& guard_count() {
  static GuardCount guards;
  return guards;
}

}  // namespace

ExitGuard::ExitGuard() {
  guard_count().add(1);
  guard_.reset(&guard_count());
}

void ExitGuard::Release::operator()(void*) const {
  guard_count().add(-1);
}

}  // namespace tutti::comm
