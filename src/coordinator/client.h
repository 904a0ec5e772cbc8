#pragma once
// The connection of one rank to the job's coordinator: key-value entries, heartbeats, failure reports and wait states.
//
// One thread ("tutti-coord") sends heartbeats, hands answers to ClientRequests and events to the callbacks. A
// connection that breaks while both processes live is made again within the heartbeat timeout under the same identity;
// requests that were not answered are sent again. docs/wire_format.md has the messages.
//
//   waiting --tick--> connecting --connected--> greeting --welcome--> open --broken--> waiting
//   connecting, greeting --no answer--> waiting
//   any --refused, or the coordinator is lost--> ended
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "coordinator/address.h"
#include "coordinator/client_requests.h"
#include "coordinator/job.h"
#include "coordinator/poller.h"
#include "coordinator/stream.h"
#include "core/job_secret.h"
#include "core/random.h"

namespace tutti::coordinator {

struct ClientOptions {
  std::string host =
      "127.0.0.1";  ///< a name, a numeric address (IPv4, IPv6), or "local:NAME" for a socket of this user
  std::uint16_t port = 0;
  JobSecretPtr secret{};  ///< null: the connection is neither authenticated nor encrypted
  Member member{};
  Milliseconds connect_timeout{0};
  JobTimeouts timeouts{};
  /// The coordinator is lost if its machine acknowledges and its process does not answer for this long; 0: never.
  Milliseconds response_timeout{0};
};

/// Called on the client's thread, one at a time, in the order in which the coordinator sent the events. A callback
/// must not call back into the client, and must not block.
struct ClientEvents {
  std::function<void(const FailedRanks&)> on_failed{};  ///< once for each event; never names this rank
  std::function<void(const std::vector<int>& ranks)> on_left{};
  /// A failure report that another rank of `group` has published.
  std::function<void(const std::string& group, int rank, const std::string& text)> on_report{};
  std::function<void(const Deadlock&)> on_deadlock{};
  /// The coordinator is lost: no rank of the job can continue. `cause` is what happened to its process; nullopt if the
  /// coordinator refuses this rank, which it has judged to have failed. Called once, and last.
  std::function<void(std::optional<Cause> cause, const std::string& why)> on_lost{};
};

/// Thread safe. Calls that wait throw TimeoutError at their timeout and PeerError when the coordinator is lost.
class Client {
 public:
  /// Connects, says hello and waits until the coordinator has accepted this rank, not until others have joined. Tries
  /// again while nothing listens, until connect_timeout. Throws UsageError if the coordinator refuses this rank (wrong
  /// secret, another world size, another version, a rank that is there already), TimeoutError.
  Client(const ClientOptions& options, ClientEvents events);
  /// Leaves the job in good order, unless an exception is being handled: then the coordinator sees an exit.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Key-value entries. Keys and values are bytes; a value has at most max_value_bytes (coordinator/job.h). A call
  // without a timeout waits as long as the coordinator is stopped.
  void set(const std::string& key, std::string_view value);
  std::int64_t add(const std::string& key, std::int64_t increment, std::optional<Milliseconds> timeout = std::nullopt);
  /// Stores `desired` if the value equals `expected`; an absent key equals "". Returns the value afterwards.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                          std::optional<Milliseconds> timeout = std::nullopt);
  /// Waits until all `keys` exist. Returns their values in order.
  std::vector<std::string> get(const std::vector<std::string>& keys, Milliseconds timeout);
  void wait(const std::vector<std::string>& keys, Milliseconds timeout);
  bool check(const std::vector<std::string>& keys, std::optional<Milliseconds> timeout = std::nullopt);
  bool erase(const std::string& key);
  std::int64_t num_keys();

  /// Every member's `value`, in the order of `members` (global ranks), once all have called it with the same `topic`.
  /// Throws TimeoutError naming the members that have not, PeerError if one of them has failed. If the coordinator is
  /// silent, the error comes 1 s and `longer` after the timeout and names no rank.
  std::vector<std::string> all_gather(const std::string& topic, const std::vector<int>& members,
                                      const std::string& value, Milliseconds timeout,
                                      Milliseconds longer = Milliseconds(0));

  /// Publishes this rank's failure report (flight::FailureReport::to_text) to the other ranks of the job. Returns
  /// before it is sent; never blocks or throws.
  void report(const std::string& group, const std::string& text) noexcept;
  /// The rank has been blocked in the calls of `wait_state` (flight::WaitState) for `blocked_for` and still is;
  /// `agrees` when it has been so for the deadlock timeout and no thread of the program has used CPU time. unblocked()
  /// takes it back.
  void blocked(const std::string& wait_state, bool agrees, Milliseconds blocked_for = Milliseconds(0)) noexcept;
  void unblocked() noexcept;

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
