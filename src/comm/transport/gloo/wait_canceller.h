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

#include "comm/backend/slow_operation_warning.h"
#include "comm/backend/transfer_error.h"
#include "comm/transport/gloo/connections.h"

namespace tutti::comm {

/// What a wait is for. Both functions are called by several threads, one at a time.
struct WaitSpec {
  Deadline deadline;
  std::function<std::optional<TransferError>(Deadline now)> cancel_reason;
  std::function<void(std::chrono::seconds waited)> on_slow;  ///< after a long time, and then rarely
};

/// Its thread sleeps but for five looks a second. Thread safe.
class WaitCanceller {
 public:
  /// `before_check` is called before each look at the waits.
  explicit WaitCanceller(std::function<void()> before_check);
  /// No thread may be in wait().
  ~WaitCanceller();
  WaitCanceller(const WaitCanceller&) = delete;
  WaitCanceller& operator=(const WaitCanceller&) = delete;

  /// Blocks until `message` has ended. Throws what cancel_reason() says, and what PendingMessage::wait() throws.
  void wait(PendingMessage& message, WaitSpec spec);
  /// Looks at once. Takes no lock.
  void wake() noexcept;

 private:
  struct Wait {
    Wait(PendingMessage& message_, WaitSpec spec_, Deadline now)
        : message(&message_), spec(std::move(spec_)), slow_warning(now) {}

    PendingMessage* message;
    WaitSpec spec;
    SlowOperationWarning slow_warning;
    int entered = 0;      // times that its thread was about to wait
    Deadline entered_at;  // the last one
    int aborted = 0;      // the last one that was ended
  };

  void run();
  Deadline check_waits(Deadline now);
  bool wait_once(std::unique_lock<std::mutex>& lock, Wait& wait);

  std::function<void()> before_check_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Wait> waits_;
  std::atomic<bool> wake_requested_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tutti::comm
