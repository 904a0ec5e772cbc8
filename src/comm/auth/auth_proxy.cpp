#include "comm/auth/auth_proxy.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/auth/peer_uid.h"
#include "core/pending_limit.h"
#include "core/thread_name.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

using ProxyClock = std::chrono::steady_clock;

// Where the process has no descriptor left, accepting fails at once, again and again.
constexpr auto accept_retry_interval = std::chrono::milliseconds(100);

}  // namespace

class AuthProxy::EventLoop {
 public:
  explicit EventLoop(Options options) : options_(std::move(options)), wake_fd_(::eventfd(0, EFD_CLOEXEC)) {
    if (!wake_fd_.is_open()) throw std::system_error(errno, std::generic_category(), "eventfd");
    thread_ = std::thread([this] {
      name_this_thread("tutti-auth");
      run();
    });
  }
  ~EventLoop() {
    const std::uint64_t one = 1;
    while (::write(wake_fd_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  const Options& options() const { return options_; }

 private:
  void run() {
    std::vector<pollfd> poll_set;
    for (;;) {
      const auto now = ProxyClock::now();
      evict_pending(now);
      poll_set.assign({{.fd = wake_fd_.get(), .events = POLLIN, .revents = 0},
                       {.fd = can_accept(now) ? options_.listening.get() : -1, .events = POLLIN, .revents = 0}});
      for (const ProxyConnection& connection : connections_) connection.add_poll_events(poll_set);
      ::poll(poll_set.data(), poll_set.size(), milliseconds_to_wait(now));
      if (poll_set[0].revents != 0) return;
      if (poll_set[1].revents != 0) accept_connections();
      advance_connections();
    }
  }

  std::vector<ProxyConnection::Time> pending_since() const {
    std::vector<ProxyConnection::Time> since;
    for (const ProxyConnection& connection : connections_) {
      if (connection.is_pending()) since.push_back(connection.since());
    }
    return since;  // in the order in which they came
  }

  /// Only on the server: the connections of a client proxy come from this process.
  void evict_pending(ProxyConnection::Time now) {
    if (options_.role != ProxyConnection::Role::server) return;
    auto count = PendingLimit::to_evict(pending_since(), now);
    std::erase_if(connections_, [&](const ProxyConnection& connection) {
      if (count == 0 || !connection.is_pending()) return false;
      --count;
      return true;
    });
  }

  bool can_accept(ProxyConnection::Time now) const {
    return now >= accept_resumes_at_ && PendingLimit::has_capacity(pending_since().size());
  }

  int milliseconds_to_wait(ProxyConnection::Time now) const {
    auto wait = ProxyClock::duration(std::chrono::minutes(1));
    if (now < accept_resumes_at_) wait = std::min(wait, accept_resumes_at_ - now);
    const auto since = pending_since();
    if (!since.empty()) wait = std::min(wait, since.front() + PendingLimit::timeout_for(since.size()) - now);
    for (const ProxyConnection& connection : connections_) {
      if (connection.next_attempt()) wait = std::min(wait, *connection.next_attempt() - now);
    }
    return static_cast<int>(std::max<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(wait).count(), 0));
  }

  void accept_connections() {
    const auto now = ProxyClock::now();
    while (can_accept(now)) {
      errno = 0;
      auto socket = try_accept(options_.listening);
      if (!socket) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          accept_resumes_at_ = now + accept_retry_interval;
        }
        return;
      }
      if (options_.role == ProxyConnection::Role::client && !peer_has_same_uid(*socket)) continue;
      connections_.emplace_back(std::move(*socket), options_.server_address, options_.role, options_.secret,
                                options_.subject, now);
    }
  }

  void advance_connections() {
    const auto now = ProxyClock::now();
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      if (connection->on_ready(now)) {
        ++connection;
        continue;
      }
      if (connection->has_failed()) log_first_failure(*connection);
      connection = connections_.erase(connection);
    }
  }

  // Logs the first failure only, so that unauthenticated clients cannot make the log grow.
  void log_first_failure(const ProxyConnection& connection) {
    if (std::exchange(has_reported_, true) || options_.role != ProxyConnection::Role::server) return;
    log_.warning("rejected a connection from " + describe_peer(connection.client()) +
                 ", which does not know the job's secret; further rejections are not logged");
  }

  const Options options_;
  const Logger log_;
  const FileDescriptor wake_fd_;
  std::list<ProxyConnection> connections_;
  ProxyConnection::Time accept_resumes_at_{};
  bool has_reported_ = false;
  std::thread thread_;
};

AuthProxy::AuthProxy(Options options) : loop_(std::make_unique<EventLoop>(std::move(options))) {}
AuthProxy::~AuthProxy() = default;

const SocketAddress& AuthProxy::server_address() const {
  return loop_->options().server_address;
}

}  // namespace tutti::comm
