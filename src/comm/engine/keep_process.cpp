#include "comm/engine/keep_process.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace tutti::comm {
namespace {

constexpr auto longest_wait_for_threads = std::chrono::seconds(30);

class Keepers {
 public:
  Keepers() = default;
  ~Keepers() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, longest_wait_for_threads, [&] { return count_ == 0; });
  }
  Keepers(const Keepers&) = delete;
  Keepers& operator=(const Keepers&) = delete;

  void add(int count) {
    // All with the mutex held: afterwards the process may end.
    const std::lock_guard lock(mutex_);
    count_ += count;
    if (count_ == 0) changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// Of the process, since its end is what waits. LibTorch's static objects are made before it, and so go after it.
Keepers& keepers() {
  static Keepers all;
  return all;
}

}  // namespace

KeepProcess::KeepProcess() {
  keepers().add(1);
}

KeepProcess::~KeepProcess() {
  if (keeps_) keepers().add(-1);
}

}  // namespace tutti::comm
