#pragma once
// The thread of a client ("tutti-coord"): connects, connects again after a break, sends heartbeats, hands answers to
// ClientRequests and events to the callbacks.
//
//   waiting --tick--> connecting --connected--> greeting --welcome--> open --broken--> waiting
//   connecting, greeting --no answer--> waiting
//   any --refused, or the coordinator is lost--> ended
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "coordinator/address.h"
#include "coordinator/client.h"
#include "coordinator/client_requests.h"
#include "coordinator/poller.h"
#include "coordinator/stream.h"
#include "core/random.h"

namespace tutti::coordinator {

class Client::Connection {
 public:
  Connection(const ClientOptions& options, ClientEvents events);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  ClientRequests& requests() { return requests_; }

 private:
  enum class State {
    waiting,     // no socket; the next tick begins an attempt
    connecting,  // `socket_` is being connected
    greeting,    // `stream_` has sent a hello
    open,        // the coordinator has accepted this rank on `stream_`
    ended,
  };
  enum class Stop { no, leaving, abandoning };

  // All of the thread, but stop().
  void run();
  void stop(Stop how);
  void enter(State next);
  void tick_every(Milliseconds interval);
  void watch_stream();

  void on_tick(Time now, bool was_late);
  void start_attempt();
  void on_connected();
  void on_connect_error(const std::system_error& error);
  void fail_attempt(const std::string& why);
  void refuse(const std::string& why);
  void pump();
  void on_stream_end(Stream::State state);
  void on_frame(const FrameHeader& header, std::string_view body);
  void on_greeting_answer(MessageType type, std::string_view body);
  void on_event(MessageType type, std::string_view body);  // calls the callbacks
  void on_broken(const std::string& why, Time since);
  void send_frames();
  void send_heartbeat();
  /// Returns false if the coordinator's process does not answer.
  bool check_response(Time now, bool was_late);
  void end_as_stopped();
  bool continues();
  /// Returns false if the connection has broken meanwhile.
  bool leave();
  void end(std::optional<Cause> cause, const std::string& why, bool is_usage_error = false);

  const ClientOptions options_;
  const ClientEvents events_;
  const Nonce key_;
  const Time connect_deadline_;
  Address address_;
  std::optional<TlsContext> tls_;
  Poller poller_;
  ClientRequests requests_{[this] { poller_.wake(); }};
  std::atomic<Stop> stop_ = Stop::no;

  State state_ = State::waiting;
  bool has_been_open_ = false;
  FileDescriptor socket_;
  std::optional<Stream> stream_;
  std::optional<Stream> broken_stream_;  // open until the next connection stands: its FIN would mean an exit
  int closed_attempts_ = 0;              // in a row that the coordinator closed at once, before its answer
  Time attempt_began_{};
  Time broken_since_{};
  std::string last_error_;
  std::uint64_t events_seen_ = 0;
  Time last_heard_{};                   // the coordinator has sent or read bytes
  std::optional<Time> asked_at_;        // since then, for an answer
  std::optional<std::string> not_yet_;  // why the coordinator does not accept this rank yet
  Milliseconds interval_{0};            // between ticks
  Time next_tick_{};
  std::optional<Time> leave_deadline_;  // set while the rank leaves
  std::thread thread_;
};

}  // namespace tutti::coordinator
