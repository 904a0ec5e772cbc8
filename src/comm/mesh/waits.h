#pragma once
// Who waits for messages, and a thread that ends waits which have no sense any more: Gloo's own timeouts would close
// the connections of all channels.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "comm/engine/transfer.h"
#include "comm/engine/waiting_line.h"
#include "comm/mesh/connections.h"

namespace tutti::comm {

/// What a wait is for. Both functions are called by several threads, one at a time.
struct Awaited {
  Deadline deadline;
  std::function<std::optional<TransferError>(Deadline now)> why_to_end;
  std::function<void(std::chrono::seconds waited)> say_so;  ///< after a long time, and then rarely
};

/// Its thread sleeps but for five looks a second. Thread safe.
class Waits {
 public:
  /// `look` is called before each look at the waits.
  explicit Waits(std::function<void()> look);
  /// Nobody may wait any more.
  ~Waits();
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

  /// Blocks until `message` has ended. Throws what why_to_end() says, and what UnderWay::wait() throws.
  void wait(UnderWay& message, Awaited awaited);
  /// Looks at once. Takes no lock.
  void hurry() noexcept;

 private:
  struct Wait {
    Wait(UnderWay& message_, Awaited awaited_, Deadline now)
        : message(&message_), awaited(std::move(awaited_)), line(now) {}

    UnderWay* message;
    Awaited awaited;
    WaitingLine line;
    int entered = 0;      // times that its thread was about to wait
    Deadline entered_at;  // the last one
    int aborted = 0;      // the last one that was ended
  };

  void run();
  Deadline look_at_waits(Deadline now);
  bool wait_once(std::unique_lock<std::mutex>& lock, Wait& wait);

  std::function<void()> look_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Wait> waits_;
  std::atomic<bool> hurries_ = false;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace tutti::comm
