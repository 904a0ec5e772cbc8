#pragma once
// The thread of a client: connects, connects again after a break, sends heartbeats, matches answers with requests.
//
//   connecting --accepted--> running --broken--> reconnecting --accepted--> running
//   connecting --refused, or the constructor's timeout--> ended
//   running, reconnecting --the coordinator is lost--> ended
//
// mutex_ guards what callers and the thread share; the thread holds it for short, never while it calls a callback.
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "coordinator/client.h"
#include "coordinator/membership.h"
#include "coordinator/messages.h"
#include "coordinator/stream.h"
#include "core/in_this_process.h"

namespace tutti::coordinator {

class Client::Connection {
 public:
  Connection(const ClientOptions& options, ClientEvents events);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool is_in_this_process() const { return static_cast<bool>(in_this_process_); }
  /// Sends a request and waits for the answer's body. Without a timeout it waits until the coordinator is lost.
  /// `what` names the call in errors.
  std::string call(const std::string& what, MessageType type, const BodyWriter& body,
                   std::optional<Milliseconds> timeout = std::nullopt);
  /// A request whose answer no caller waits for.
  void post(MessageType type, const BodyWriter& body);
  /// The rank's present statement about blocked calls, which is sent again after a break.
  void state_blocked(std::string frame);
  void send_once(const std::string& frame);

 private:
  enum class Phase { connecting, running, reconnecting, ended };
  enum class Link { none, connecting, greeting, welcomed };
  struct Request {
    std::string frame;
    bool has_caller = true;
    bool is_answered = false;
    std::string reply{};
    std::optional<ErrorReply> error{};
  };

  void run();
  void wake();
  void set_timer(Milliseconds interval);
  void watch(int operation, int descriptor, std::uint32_t events);
  void on_tick(bool was_late);
  void start_attempt();
  void on_connected();
  void on_connect_error(const std::system_error& error);
  void attempt_failed(const std::string& why, bool is_final);
  void pump();
  void on_frame(const FrameHeader& header, std::string_view body);
  void on_welcome(const Welcome& welcome);
  void on_event(MessageType type, std::string_view body);
  void on_broken(const std::string& why, Time since);
  void send_outgoing();
  void send_heartbeat();
  /// Returns false if the coordinator's process does not answer.
  bool check_response(Time now, bool was_late);
  void leave();
  /// Ends the connection: by UsageError where `is_usage_error`, else by PeerError.
  void end(std::optional<Cause> cause, const std::string& why, bool is_usage_error = false);
  bool has_ended() const { return phase_ == Phase::ended; }
  [[noreturn]] void throw_ended(const std::string& what) const;  // with mutex_
  [[noreturn]] static void throw_error(const std::string& what, const ErrorReply& error, Milliseconds timeout);
  std::string address() const;

  const InThisProcess in_this_process_;
  const ClientOptions options_;
  const ClientEvents events_;
  std::vector<std::string> hosts_;  // numeric addresses; one entry for a local socket
  ClientKey key_{};
  std::optional<TlsContext> tls_;
  FileDescriptor epoll_;
  FileDescriptor wake_;
  FileDescriptor timer_;

  // Of the thread.
  Link link_ = Link::none;
  Milliseconds interval_{0};  // of the timer
  FileDescriptor connecting_;
  std::optional<Stream> stream_;
  std::optional<Stream> broken_stream_;  // open until the next connection stands: its FIN would mean an exit
  bool awaits_writable_ = true;
  std::size_t attempts_ = 0;
  int closed_attempts_ = 0;  // in a row that the coordinator closed before its answer
  Time attempt_began_{};
  Time broken_since_{};
  std::uint64_t events_seen_ = 0;
  Time last_heard_{};                   // a frame of the coordinator
  std::optional<std::string> not_yet_;  // why the coordinator does not accept this rank yet
  bool has_asked_ = false;              // since then, for an answer
  std::string last_error_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::connecting;
  std::string why_ended_;
  bool is_usage_error_ = false;
  std::string connect_error_;
  enum class Stop { no, leaving, abandoning } stop_ = Stop::no;
  std::string outgoing_;
  std::string blocked_frame_;
  std::map<std::uint64_t, Request> requests_;  // by tag
  std::uint64_t next_tag_ = 1;
  std::thread thread_;
};

}  // namespace tutti::coordinator
