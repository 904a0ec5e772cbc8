#pragma once
// What the threads of a rank ask the coordinator: frames to send, answers, and who waits for them until when. No I/O.
//
// A request stays until it is answered. When a connection begins, all that were not answered are sent; the coordinator
// does none twice.
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/clock.h"
#include "coordinator/messages.h"

namespace tutti::coordinator {

/// Thread safe.
class ClientRequests {
 public:
  /// `wake`: called when there are frames to send.
  explicit ClientRequests(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Any thread.

  /// A coordinator names what is missing after a timeout, unless it is silent for longer than this.
  static constexpr Milliseconds names_timeout{1000};

  /// Sends a request and waits for the answer's body. Without a timeout it waits until the coordinator is lost.
  /// `what` names the call in errors. `longer` is added to names_timeout.
  std::string call(const std::string& what, MessageType type, const BodyWriter& body,
                   std::optional<Milliseconds> timeout = std::nullopt, Milliseconds longer = Milliseconds(0));
  /// A request whose answer no caller waits for.
  void post(MessageType type, const BodyWriter& body);
  /// The rank's present statement about blocked calls, which is sent again after a break.
  void state_blocked(std::string frame);
  /// Waits for the first begin_connection(). Returns false at the deadline; throws what end() was given.
  bool wait_for_connection(Time deadline);

  // The thread of the connection.

  void begin_connection();
  std::string take_frames();
  /// The coordinator need not keep answers to lower tags. It keeps none to `get` and `wait`, which may wait for hours.
  std::uint64_t lowest_unanswered() const;
  void on_answer(const FrameHeader& header, std::string_view body);
  /// All calls throw: UsageError where `is_usage_error`, else PeerError.
  void end(const std::string& why, bool is_usage_error);

 private:
  struct Request {
    MessageType type{};
    std::string frame{};
    bool has_caller = true;
    bool is_cancelled = false;
    bool is_answered = false;
    std::string reply{};
    std::optional<ErrorReply> error{};
  };
  struct End {
    std::string why;
    bool is_usage_error = false;
  };
  // With the mutex held.
  std::map<std::uint64_t, Request>::iterator add(MessageType type, const BodyWriter& body, bool has_caller);
  [[noreturn]] void throw_ended(const std::string& what) const;

  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool has_begun_ = false;
  std::optional<End> end_;
  std::string outgoing_;
  std::string blocked_frame_;
  std::map<std::uint64_t, Request> requests_;  // by tag
  std::uint64_t next_tag_ = 1;
};

}  // namespace tutti::coordinator
