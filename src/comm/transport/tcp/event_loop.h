#pragma once
// The connections of a process to other ranks of its job, and the thread that reads them. Collectives and
// point-to-point messages of all groups share them; a channel is a number in the frames.
//
// - Two ranks have one connection, made when one of them first needs it. If both connect, that of the lower rank stays.
// - A thread that sends writes what the socket takes; the loop's thread writes long messages and the rest, unless it
//   runs callbacks. The loop's thread reads, straight into the memory of the receive that matches.
// - A thread that waits for a message handles the events of the sockets itself, so that no other thread has to wake it
//   up. The sockets are in an epoll set of their own. The loop's thread waits for that set, except during serve().
// - A send has ended when the system has taken its bytes; with encryption, up to 64 KiB earlier.
// - One mutex guards everything. Reads and writes run without it, with Connection::is_reading and Outbox::is_writing()
//   set: memory that they use is not given back before they end.
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "comm/os/exit_guard.h"
#include "comm/transport/tcp/connection.h"
#include "comm/transport/tcp/matcher.h"
#include "comm/transport/tcp/outbox.h"
#include "coordinator/poller.h"
#include "core/pending_limit.h"

namespace tutti::comm {

/// Ranks are those in the job. Thread safe.
class EventLoop : public std::enable_shared_from_this<EventLoop> {
 public:
  /// `nonce` is a part of this rank's address. `addresses` are those of all ranks. Throws std::system_error if there
  /// are no descriptors; then `listening` is as before.
  EventLoop(ListeningSocket&& listening, const Nonce& nonce, int rank, std::vector<EndpointAddress> addresses,
            ConnectionSecurity security, std::chrono::milliseconds acknowledgement_timeout);

  /// The thread owns a reference to the loop, because a callback may destroy the endpoint.
  void start();
  /// Sends what is to be sent, until its deadlines; not during stack unwinding. Ends the thread.
  void close();

  /// What a connection to the rank that is being made waits for; empty if none is.
  std::string why_not_connected(int rank);
  /// Begins to send or receive. The message completes on any thread, possibly before post() returns.
  void post(const MessagePtr& message);
  /// Forgets the message and gives its memory back. Returns false if it has ended: it completes at once if it has not.
  bool cancel(const MessagePtr& message);
  /// Handles the events of the sockets in the calling thread until `is_over()`, or until `until`. Returns at once while
  /// another thread handles them. `is_over` is called with the loop's mutex held.
  void serve(const std::function<bool()>& is_over, Deadline until);
  /// Lets the thread in serve() call `is_over()` again.
  void interrupt() const { sockets_.wake(); }
  /// Ends the messages of the channel, later ones too, and tells its members, each as soon as it is connected. Without
  /// `cancel_sends`, sends go on.
  void close_channel(const ClosedChannel& closed, bool cancel_sends);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using ConnectionPtr = std::shared_ptr<Connection>;
  static constexpr std::chrono::milliseconds max_wait = std::chrono::minutes(1);
  struct Peer {
    enum class State {
      idle,
      connecting,  // `connection` is being made
      awaited,     // it is connecting to this rank
      open,
      failed,
    };
    State state = State::idle;
    ConnectionPtr connection;
    std::optional<Deadline> unacknowledged_since{};  // bytes in flight; in state `awaited`: since when
    Outbox outbox;
    bool write_again = false;  // the socket may take more bytes than the write in progress finds
    Outcome failure{.kind = Outcome::Kind::disconnected};
  };
  /// The thread that handles the events of the sockets. It leaves and returns to `none`.
  enum class Handler {
    none,    // the next event wakes the loop's thread
    loop,    // the loop's thread
    waiter,  // a thread in serve(): events do not wake the loop's thread
  };

  // Any thread, with the mutex held. `lock` is released during a write.
  void contact(int rank, Effects& effects);
  void make_connection(int rank);
  void watch(const ConnectionPtr& connection);
  /// " at ADDRESS", and what to check if there is no connection.
  std::string at_address(int rank) const;
  /// The end of a connection, with its errno.
  static Outcome disconnected(int error);
  void limit_greeting(const Connection& connection) const;
  void flush(Lock& lock, int rank, Effects& effects);
  void fail_peer(int rank, Outcome reason, Effects& effects);
  void fail_outbox(Peer& peer, Effects& effects);
  void drop(const ConnectionPtr& connection);
  Removal remove(const Message& message, Effects& effects);
  void resume_paused();
  void add_timed(const MessagePtr& message);
  /// Who runs the callbacks of messages: this call, or the loop's thread, in its next turn.
  enum class Callbacks { run, defer };
  /// Sends the replies and completes the messages. Releases the lock. `posted` is a message that no other thread knows.
  void apply(Lock& lock, Effects& effects, const Message* posted = nullptr, Callbacks callbacks = Callbacks::defer);
  void wake() const { poller_.wake(); }

  // The loop's thread.
  void run();
  void wait_for_events(Lock& lock);

  // The thread that handles the events.
  void set_handler(Handler handler);
  void handle_events(Lock& lock, std::chrono::milliseconds timeout);
  void handle(Lock& lock, const ConnectionPtr& connection, std::uint32_t events);
  bool greet(Lock& lock, const ConnectionPtr& connection, Effects& effects);
  void accept_hello(const ConnectionPtr& connection);
  void read(Lock& lock, const ConnectionPtr& connection, Effects& effects);
  bool process_frames(Lock& lock, Connection& connection, Effects& effects);
  void accept_connections();

  // The loop's thread.
  void limit_pending(Lock& lock, Effects& effects);
  void expire(Effects& effects);
  void check_acknowledgements(Effects& effects);
  bool is_finished();
  std::chrono::milliseconds time_to_wait() const;

  std::optional<ExitGuard> exit_guard_;  // destroyed last
  const ConnectionSecurity security_;
  const std::chrono::milliseconds acknowledgement_timeout_;
  const int rank_;
  const Nonce nonce_;
  const std::vector<EndpointAddress> addresses_;  // by rank
  coordinator::Poller poller_;                    // what the loop's thread waits for
  coordinator::Poller sockets_;                   // in `poller_`
  ListeningSocket listening_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;  // a read, write or copy has ended; a peer is open or has failed
  std::map<int, Peer> peers_;        // none is ever erased
  Matcher matcher_;
  std::unordered_map<int, ConnectionPtr> connections_;  // by descriptor
  std::vector<ConnectionPtr> pending_;                  // those that have not said who they are, the earliest first
  std::vector<ConnectionPtr> ready_;                    // may have more to read
  Handler handler_ = Handler::none;
  std::vector<Effects::Completion> callbacks_;  // for the loop's thread
  std::optional<ExitGuard> callbacks_guard_;    // until `callbacks_` have run
  bool may_run_callbacks_ = false;              // the loop's thread writes nothing that is posted now
  std::set<ConnectionPtr> paused_;
  std::set<int> to_flush_;
  std::set<MessagePtr> timed_;  // messages with a deadline
  Deadline next_timer_{};
  Deadline next_look_{};
  int copying_ = 0;  // threads that copy received bytes
  AcceptPause accept_pause_;
  bool stopping_ = false;
  bool drop_pending_ = false;
  bool finished_sending_ = false;
  std::optional<Deadline> close_deadline_;
};

}  // namespace tutti::comm
