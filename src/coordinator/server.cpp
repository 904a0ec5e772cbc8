#include "coordinator/server.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/job_state.h"
#include "coordinator/poller.h"
#include "coordinator/stream.h"
#include "core/descriptor_limit.h"
#include "core/in_this_process.h"
#include "core/log_without_waiting.h"
#include "core/pending_limit.h"
#include "core/socket.h"
#include "core/thread_name.h"

namespace tutti::coordinator {
namespace {

constexpr auto tick = Milliseconds(50);
// A loop that wakes later than this did not run: the machine or the process was stopped.
constexpr auto stall_limit = Milliseconds(200);
constexpr int max_drain_rounds = 1000;
// Of answers to one rank. It may ask for several long values at once: the next request is read when it has read these.
constexpr std::size_t max_unsent_bytes = max_body_bytes;
// All ranks may throw the same error, and must have read its reason.
constexpr auto unwinding_linger = Milliseconds(500);

/// One connection to each rank. Beside them the process has those of unknown peers, and rank 0 has the connections and
/// files of a rank.
void require_descriptors_for(int world_size) {
  constexpr std::uint64_t for_others = 512;
  const auto ranks = static_cast<std::uint64_t>(world_size);
  const auto needed = count_open_descriptors() + ranks;
  require_descriptors("the coordinator of " + std::to_string(world_size) + " ranks", needed,
                      needed + ranks + for_others);
}

}  // namespace

// The constructor and the destructor run on the caller's thread; everything else on the server's.
class Server::Loop {
 public:
  explicit Loop(ServerOptions options)
      : options_(std::move(options)),
        listening_(std::move(options_.listening)),
        port_(options_.is_local ? std::uint16_t{0}
                                : static_cast<std::uint16_t>(local_address_of(listening_.get()).port)),
        job_(new_job(Hello{})) {
    require_descriptors_for(options_.world_size);
    if (options_.secret != nullptr) tls_.emplace(*options_.secret, Side::server);
    set_nonblocking(listening_);
    listening_.unshare();
    poller_.watch(listening_.get(), EPOLLIN);
    thread_ = std::thread([this] {
      name_this_thread("tutti-server");
      run();
    });
  }

  ~Loop() {
    const auto linger = std::uncaught_exceptions() > 0 ? std::min(unwinding_linger, options_.linger) : options_.linger;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, linger, [&] { return has_finished_; });
      is_stopping_ = true;
    }
    poller_.wake();
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

 private:
  friend class Server;
  struct Connection {
    explicit Connection(Stream stream_) : stream(std::move(stream_)) {}
    Stream stream;
    const Time accepted_at = current_time();
    int rank = -1;            // of a member
    bool is_closing = false;  // once all is sent; the rank is then none
  };

  void run() {
    auto next_judgement = current_time() + tick;
    for (;;) {
      poll(time_until(next_judgement));
      const auto woke = current_time();
      if (woke > next_judgement + stall_limit) {
        job_->stalled(woke - next_judgement, woke);
        next_judgement = woke;
      }
      // All that has come by `now` is read before anything is judged. A stop after `now` is stalled() in the next
      // round.
      auto now = woke;
      for (int round = 0; round < max_drain_rounds; ++round) {
        now = current_time();
        if (!poll(Milliseconds(0))) break;
      }
      take_exits();
      if (now >= next_judgement) {
        job_->judge(now, [this](int rank) { return acknowledges(rank); });
        evict_pending();
        next_judgement = now + tick;
      }
      job_->send_events();
      finish_connections();
      const std::lock_guard lock(mutex_);
      has_finished_ = job_->membership().has_finished();
      const bool closes = has_finished_ && is_last_job_;
      if (closes) {
        connections_.clear();
        listening_.reset();
      }
      if (has_finished_) changed_.notify_all();
      if (is_stopping_ || closes) return;
    }
  }

  /// Handles what is ready. Returns false if nothing was.
  bool poll(Milliseconds timeout) {
    const auto events = poller_.wait(timeout);
    for (const epoll_event& event : events) {
      if (event.data.fd == listening_.get()) {
        accept();
      } else if (const auto found = connections_.find(event.data.fd); found != connections_.end()) {
        pump(*found->second);
      }
    }
    erase_ended();
    return !events.empty();
  }

  void accept() {
    while (PendingLimit::has_capacity(pending_.size())) {
      auto socket = try_accept(listening_);
      if (!socket) {
        if (const int error = errno; accept_pause_.on_error(error, current_time())) warn_of_pause(error);
        break;
      }
      if (options_.is_local && !is_same_user(*socket)) {
        warn("the coordinator refused a process of another user");
        continue;
      }
      set_tcp_nodelay(*socket);
      const int descriptor = socket->get();
      try {
        auto& connection = connections_[descriptor];
        connection =
            std::make_unique<Connection>(Stream(*std::move(socket), tls_ ? &*tls_ : nullptr, max_unsent_bytes));
        pending_.push_back(descriptor);
        poller_.watch(descriptor, EPOLLIN);
      } catch (const std::exception&) {  // no memory or descriptor
        std::erase(pending_, descriptor);
        connections_.erase(descriptor);
        break;
      }
    }
    watch_listening();
  }

  void warn_of_pause(int error) {
    if (std::exchange(has_paused_, true)) return;
    warn("the coordinator cannot accept a connection: " + std::generic_category().message(error) +
         ". Ranks that connect wait until a descriptor (ulimit -n) and memory are free");
  }

  void watch_listening() {
    const bool accepts = PendingLimit::has_capacity(pending_.size()) && accept_pause_.is_over(current_time());
    poller_.watch(listening_.get(), accepts ? std::uint32_t{EPOLLIN} : 0);
  }

  void evict_pending() {
    const auto since = [this](int descriptor) { return connections_.at(descriptor)->accepted_at; };
    for (auto count = PendingLimit::to_evict(pending_, current_time(), since); count > 0; --count) {
      auto& connection = *connections_.at(pending_.front());
      warn("the coordinator closed a connection from " + describe_peer(connection.stream.socket()) +
           ", which did not introduce itself");
      end(connection);
    }
    erase_ended();
    watch_listening();
  }

  void pump(Connection& connection) {
    auto& stream = connection.stream;
    auto state = Stream::State::network_error;
    try {
      state =
          stream.pump([&](const FrameHeader& header, std::string_view body) { on_frame(connection, header, body); });
    } catch (const std::exception& error) {  // no memory: the other ranks' connections go on
      warn("the coordinator closed the connection to " + describe_peer(stream.socket()) + ": " + error.what());
    }
    if (stream.has_progressed() && connection.rank >= 0) {
      job_->heard_from(connection.rank, current_time());  // a long frame takes longer than the heartbeat timeout
    }
    if (state != Stream::State::open) on_end(connection, state);
  }

  void on_frame(Connection& connection, const FrameHeader& header, std::string_view body) {
    if (connection.is_closing) return;
    if (connection.rank >= 0) {
      if (!job_->on_frame(connection.rank, header, body, current_time())) close(connection);
      return;
    }
    if (header.message() != MessageType::hello) throw DamagedFrame("the first message is no hello");
    on_hello(connection, Hello::from_body(body));
  }

  /// The state of a job that begins with the hello of `first`.
  std::unique_ptr<JobState> new_job(const Hello& first) {
    auto job = std::make_unique<JobState>(
        options_.world_size, options_.timeouts.heartbeat > Milliseconds(0) ? options_.timeouts : first.timeouts,
        [this](int rank, std::string_view frame) {
          if (const auto found = by_rank_.find(rank); found != by_rank_.end()) found->second->stream.send(frame);
        });
    for (const int rank : ended_processes_) job->process_exited(rank);
    return job;
  }

  // A rank's program may be several processes, one after the other: each is a job of its own. A process that continues
  // after the verdict that ended its job does not join the next one.
  void on_hello(Connection& connection, const Hello& hello) {
    const auto& members = job_->membership();
    const bool has_ended = members.has_finished() && !is_last_job_;
    const bool is_former = former_keys_.contains(hello.key);
    const auto& of = hello.member.job;
    const bool is_of_another_job = !of.empty() && !options_.job.empty() && of != options_.job;
    const bool may_begin = members.has_begun() ? has_ended : !job_->is_contradictory();
    if (may_begin && !is_of_another_job && !is_former && !members.keys().contains(hello.key)) {
      if (members.has_begun()) former_keys_ = members.keys();
      job_ = new_job(hello);
    }
    const auto result = is_of_another_job ? another_job(hello.member)
                        : is_former       ? Membership::failed_before(hello.member)
                                          : job_->hello(hello, current_time());
    std::erase(pending_, connection.stream.socket().get());
    const bool is_member =
        result.verdict == Membership::Verdict::accepted || result.verdict == Membership::Verdict::resumed;
    if (!is_member) {
      const bool is_early = result.verdict == Membership::Verdict::not_yet;
      if (!is_early) {
        warn("the coordinator refused a process at " + describe_peer(connection.stream.socket()) + ": " + result.why);
      }
      connection.stream.send(
          BodyWriter().text(result.why).frame(is_early ? MessageType::not_yet : MessageType::refused));
      return close(connection);
    }
    const int rank = hello.member.rank;
    if (const auto earlier = by_rank_.find(rank); earlier != by_rank_.end()) end(*earlier->second);
    by_rank_[rank] = &connection;
    connection.rank = rank;
    connection.stream.accept_large_frames();
    job_->welcome(hello);
  }

  Membership::HelloResult another_job(const Member& member) const {
    return {Membership::Verdict::refused, "rank " + std::to_string(member.rank) + " belongs to " + member.job +
                                              ", and this coordinator to " + options_.job +
                                              ": set another MASTER_PORT for one of the two jobs"};
  }

  void on_end(Connection& connection, Stream::State state) {
    const auto peer = describe_peer(connection.stream.socket());
    if (connection.rank < 0 && !connection.is_closing && state == Stream::State::unauthenticated) {
      warn("the coordinator refused " + peer + ": it did not prove that it knows the job's secret");
    } else if (!connection.is_closing && state == Stream::State::damaged) {
      warn("the coordinator closed the connection to " + peer + ": it sent bytes that no rank of this version sends" +
           (options_.secret == nullptr ? " (this job has no secret; does the other side have one?)" : ""));
    }
    const int rank = connection.rank;
    end(connection);
    if (rank < 0) return;
    // A client answers a damaged connection as a broken one: it connects again.
    job_->disconnected(rank,
                       state == Stream::State::closed  ? Disconnect::closed
                       : state == Stream::State::reset ? Disconnect::reset
                                                       : Disconnect::network_error,
                       current_time());
  }

  void take_exits() {
    std::vector<int> exited;
    {
      const std::lock_guard lock(mutex_);
      exited.swap(exited_);
    }
    for (const int rank : exited) {
      // The kernel had closed the process's sockets before, so all that it sent is here: perhaps that it leaves.
      if (const auto found = by_rank_.find(rank); found != by_rank_.end()) pump(*found->second);
      job_->process_exited(rank);
      ended_processes_.insert(rank);
    }
    erase_ended();
  }

  bool acknowledges(int rank) const {
    const auto found = by_rank_.find(rank);
    return found != by_rank_.end() && !has_unacknowledged_bytes(found->second->stream.socket());
  }

  /// Ends connections that have sent all, and asks for writability where bytes wait.
  void finish_connections() {
    for (const auto& [descriptor, connection] : connections_) {
      auto& stream = connection->stream;
      if (stream.state() != Stream::State::open) {
        on_end(*connection, stream.state());
      } else if (connection->is_closing && !stream.wants_write()) {
        end(*connection);
      } else {
        poller_.watch(descriptor, stream.events());
      }
    }
    erase_ended();
  }

  void close(Connection& connection) {
    by_rank_.erase(std::exchange(connection.rank, -1));
    connection.is_closing = true;
  }

  void end(Connection& connection) {
    close(connection);
    const int descriptor = connection.stream.socket().get();
    poller_.forget(descriptor);
    std::erase(pending_, descriptor);
    ended_.push_back(descriptor);
  }

  void warn(const std::string& text) const { warn_without_waiting(Logger(0), text); }

  void erase_ended() {
    for (const int descriptor : std::exchange(ended_, {})) connections_.erase(descriptor);
  }

  ServerOptions options_;
  std::optional<TlsContext> tls_;
  FileDescriptor listening_;
  const std::uint16_t port_;
  Poller poller_;
  std::map<int, std::unique_ptr<Connection>> connections_;  // by descriptor
  std::map<int, Connection*> by_rank_;                      // the present connections of members
  std::vector<int> pending_;                                // descriptors without a hello, the earliest first
  std::vector<int> ended_;                                  // descriptors to close
  AcceptPause accept_pause_;
  bool has_paused_ = false;
  std::set<int> ended_processes_;  // ranks whose processes have ended
  std::set<Nonce> former_keys_;    // of the members of the job before this one
  std::unique_ptr<JobState> job_;
  std::atomic<bool> is_last_job_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> exited_;
  bool has_finished_ = false;
  bool is_stopping_ = false;
  std::thread thread_;
};

Server::Server(ServerOptions options) : loop_(make_shared_in_this_process<Loop>(std::move(options))) {}

std::uint16_t Server::port() const {
  return loop_->port_;
}

bool Server::has_finished() const {
  const std::lock_guard lock(loop_->mutex_);
  return loop_->has_finished_;
}

void Server::close_when_finished() {
  loop_->is_last_job_ = true;
  loop_->poller_.wake();
}

void Server::process_exited(int rank) {
  {
    const std::lock_guard lock(loop_->mutex_);
    loop_->exited_.push_back(rank);
  }
  loop_->poller_.wake();
}

}  // namespace tutti::coordinator
