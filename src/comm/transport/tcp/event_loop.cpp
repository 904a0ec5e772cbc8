// The thread of the event loop.
#include "comm/transport/tcp/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <system_error>
#include <utility>

#include "comm/backend/describe.h"
#include "core/launchers.h"
#include "core/pending_limit.h"
#include "core/thread_name.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr auto max_lookup_interval = std::chrono::milliseconds(50);
constexpr auto exit_check_interval = std::chrono::milliseconds(50);
// A message that a rank sent before it exited may still be in flight.
constexpr auto in_flight_grace = std::chrono::milliseconds(300);
constexpr auto max_close_wait = std::chrono::seconds(1);
constexpr auto max_unsent_wait = std::chrono::seconds(10);  // for encrypted bytes of messages that count as sent
constexpr int max_reads_in_turn = 64;

std::string address_key(int rank) {
  return "p2p/" + std::to_string(rank);
}

}  // namespace

EventLoop& Endpoint::open() {
  const std::lock_guard lock(mutex_);
  if (loop_) return *loop_;
  const std::string host = host_();
  try {
    loop_ = std::make_shared<EventLoop>(rendezvous_, rank_, host);
    loop_->start();
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    loop_ = nullptr;
    throw PeerError("listening on " + host + " failed: " + first_line(error.what()), {});
  }
  return *loop_;
}

EventLoop* Endpoint::get_if_open() {
  const std::lock_guard lock(mutex_);
  return loop_.get();
}

EventLoop::EventLoop(const Rendezvous& rendezvous, int rank, const std::string& host)
    : store_(rendezvous.store),
      job_(rendezvous.job),
      security_(rendezvous.secret, rendezvous.encrypts),
      rank_(rank),
      nonce_(random_nonce()),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      interrupt_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      sockets_fd_(::epoll_create1(EPOLL_CLOEXEC)),
      epoll_fd_(::epoll_create1(EPOLL_CLOEXEC)),
      listening_(listen_tcp(host, read_port_range(&process_variable))),
      address_(EndpointAddress{listening_.address, nonce_}.to_text()) {
  watch(epoll_fd_, wake_fd_.get(), EPOLLIN);
  watch(epoll_fd_, sockets_fd_.get(), EPOLLIN);
  watch(sockets_fd_, interrupt_fd_.get(), EPOLLIN);
  watch(sockets_fd_, listening_.socket.get(), EPOLLIN);
  store_->set(address_key(rank), address_);
}

void EventLoop::start() {
  thread_ = std::thread([self = shared_from_this()] {
    name_this_thread("tutti-tcp");
    self->run();
  });
}

void EventLoop::run() {
  Lock lock(mutex_);
  while (!is_finished()) {
    wait_for_events(lock);
    Effects effects{.completions = std::exchange(callbacks_, {}), .replies = {}};
    for (const int rank : std::exchange(to_flush_, {})) flush(lock, rank, effects);
    look_up_addresses(lock, effects);
    expire(effects);
    limit_pending();
    apply(lock, effects);
    lock.lock();
  }
  changed_.wait(lock, [&] { return handler_ == Handler::none; });
  Effects effects{.completions = std::exchange(callbacks_, {}), .replies = {}};
  for (auto& [rank, peer] : peers_) {
    changed_.wait(lock, [&peer = peer] { return !peer.outbox.is_writing(); });
    fail_peer(rank, Outcome::Kind::not_sent, effects);
  }
  connections_.clear();
  apply(lock, effects);
}

void EventLoop::handle(Lock& lock, const ConnectionPtr& connection, std::uint32_t events) {
  const auto found = connections_.find(connection->descriptor());
  if (found == connections_.end() || found->second != connection) return;
  Effects effects;
  if (connection->is_open()) {
    if ((events & EPOLLOUT) != 0) flush(lock, connection->rank(), effects);
    if ((events & ~std::uint32_t{EPOLLOUT}) != 0) read(lock, connection, effects);
  } else {
    if (greet(lock, connection, effects)) read(lock, connection, effects);
    if (handler_ == Handler::waiter) wake();  // for the timer and the number of the pending connections
  }
  apply(lock, effects);
  lock.lock();
}

/// Returns true once the connection is open.
bool EventLoop::greet(Lock& lock, const ConnectionPtr& connection, Effects& effects) {
  auto reason = Outcome::Kind::disconnected;
  try {
    switch (connection->greet()) {
      case Connection::Greeting::pending:
        return false;
      case Connection::Greeting::hello:
        if (!accept_hello(connection)) return false;
        break;
      case Connection::Greeting::open:
        break;
      case Connection::Greeting::duplicate: {
        Peer& peer = peers_.at(connection->rank());
        peer.state = Peer::State::awaited;
        peer.connection = nullptr;
        drop(connection);
        return false;
      }
      case Connection::Greeting::not_authenticated:
        reason = Outcome::Kind::not_authenticated;
        break;
    }
  } catch (const std::system_error&) {
    // The connection has ended.
  }
  if (connection->is_open()) {
    Peer& peer = peers_[connection->rank()];
    peer.state = Peer::State::open;
    peer.was_open = true;
    changed_.notify_all();
    flush(lock, connection->rank(), effects);
    return true;
  }
  if (connection->rank() >= 0) fail_peer(connection->rank(), reason, effects);
  drop(connection);
  return false;
}

/// Returns false where the connection is not used. Throws std::system_error.
bool EventLoop::accept_hello(const ConnectionPtr& connection) {
  const auto refuse = [&] {
    drop(connection);
    return false;
  };
  const Hello& hello = connection->hello();
  if (hello.nonce != nonce_ || hello.rank < 0 || hello.rank > std::numeric_limits<int>::max() || hello.rank == rank_)
    return refuse();
  const int rank = static_cast<int>(hello.rank);
  Peer& peer = peers_[rank];
  if (peer.state == Peer::State::open || peer.state == Peer::State::failed) return refuse();
  if (peer.state == Peer::State::connecting) {
    if (rank_ < rank) {
      connection->answer(Verdict::duplicate);
      return refuse();
    }
    drop(std::exchange(peer.connection, nullptr));
  }
  peer.connection = connection;
  peer.state = Peer::State::connecting;
  connection->set_rank(rank);
  std::erase(pending_, connection);
  connection->answer(Verdict::accepted);
  return true;
}

void EventLoop::read(Lock& lock, const ConnectionPtr& connection, Effects& effects) {
  for (int reads = 0;; ++reads) {
    if (!process_frames(lock, *connection, effects)) break;
    if (connection->paused_header) {
      paused_.insert(connection);
      return;
    }
    if (!effects.completions.empty()) {
      apply(lock, effects);
      lock.lock();
    }
    if (reads == max_reads_in_turn) return ready_.push_back(connection);
    connection->is_reading = true;
    lock.unlock();
    const auto result = connection->read();
    lock.lock();
    connection->is_reading = false;
    changed_.notify_all();
    const Peer& peer = peers_.at(connection->rank());
    if (peer.connection != connection)  // a write has failed
      return matcher_.on_disconnect(connection->rank(), connection->body, peer.failure, effects);
    if (result == Connection::Read::drained) return;
    if (result == Connection::Read::closed) break;
  }
  fail_peer(connection->rank(), Outcome::Kind::disconnected, effects);
}

/// Returns false for a frame that no rank sends there.
bool EventLoop::process_frames(Lock& lock, Connection& connection, Effects& effects) {
  Peer& peer = peers_.at(connection.rank());
  for (;;) {
    if (connection.body.left > 0) return true;
    matcher_.on_body(connection.body, connection.rank(), effects);
    const auto header =
        connection.paused_header ? std::exchange(connection.paused_header, {}) : connection.next_header();
    if (!header) return true;
    if (!header->is_valid()) return false;
    if (header->kind == FrameHeader::Kind::pull) {
      if (!peer.outbox.on_pull(header->id)) return false;
      flush(lock, connection.rank(), effects);
    } else if (header->kind == FrameHeader::Kind::refuse) {
      if (!peer.outbox.on_refuse(header->id, header->bytes, effects)) return false;
    } else {
      try {
        if (matcher_.can_accept(*header, connection.rank())) {
          if (!matcher_.on_frame(*header, connection.rank(), connection.body, effects)) return false;
          continue;
        }
      } catch (const std::bad_alloc&) {
        connection.body = {};
      }
      connection.paused_header = header;
      return true;
    }
  }
}

void EventLoop::accept_connections() {
  while (PendingLimit::has_capacity(pending_.size())) {
    auto socket = try_accept(listening_.socket);
    if (!socket) return;
    try {
      auto connection = std::make_shared<Connection>(std::move(*socket), security_, Clock::now());
      watch(sockets_fd_, connection->descriptor(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
      pending_.push_back(connection);
      connections_.emplace(connection->descriptor(), std::move(connection));
    } catch (const std::system_error&) {
      // No memory for it: the client finds its connection closed.
    }
  }
}

std::vector<Deadline> EventLoop::pending_since() const {
  std::vector<Deadline> since;
  for (const auto& connection : pending_) since.push_back(connection->since());
  return since;
}

void EventLoop::limit_pending() {
  if (const auto count = PendingLimit::to_evict(pending_since(), Clock::now()); count > 0) {
    const std::vector<ConnectionPtr> evicted(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(count));
    for (const auto& connection : evicted) drop(connection);
  }
  const bool accept = PendingLimit::has_capacity(pending_.size());
  if (accept == std::exchange(accepting_, accept)) return;
  epoll_event event{.events = accept ? std::uint32_t{EPOLLIN} : 0, .data = {.fd = listening_.socket.get()}};
  ::epoll_ctl(sockets_fd_.get(), EPOLL_CTL_MOD, listening_.socket.get(), &event);
}

// A rank that has not sent or received anything has published no address.
void EventLoop::look_up_addresses(Lock& lock, Effects& effects) {
  for (const int rank : std::set<int>(lookups_)) {
    Peer& peer = peers_[rank];
    const auto now = Clock::now();
    if (now < peer.next_lookup) continue;
    std::optional<std::string> text;
    lock.unlock();
    // Asked first: an address that the rank had published before would be found.
    const bool has_ended = job_ && (job_->events()->has_ended(rank) || job_->events()->lost_reason());
    try {
      if (store_->check({address_key(rank)})) text = store_->get_to_str(address_key(rank));
    } catch (const std::exception&) {
      // The connection to the coordinator was lost.
    }
    lock.lock();
    if (text) peer.address = EndpointAddress::from_text(*text);
    if (peer.state != Peer::State::lookup || peer.address) lookups_.erase(rank);
    if (peer.state == Peer::State::lookup && peer.address) {
      start_connecting(rank, peer, effects);
    } else if (peer.state == Peer::State::lookup && has_ended) {
      lookups_.erase(rank);
      fail_peer(rank, Outcome::Kind::disconnected, effects);
    } else {
      peer.next_lookup = now + peer.lookup_interval;
      peer.lookup_interval = std::min(2 * peer.lookup_interval, max_lookup_interval);
    }
  }
}

void EventLoop::expire(Effects& effects) {
  const auto now = Clock::now();
  if (timed_.empty() || now < next_timer_) return;
  next_timer_ = now + exit_check_interval;
  const auto has_exited = [&](Message& message) {
    const auto peer = peers_.find(message.rank);
    const bool is_open = peer != peers_.end() && peer->second.state == Peer::State::open;
    if (is_open || !message.peer_has_exited()) {
      message.exited_since.reset();
      return false;
    }
    if (!message.exited_since) message.exited_since = now;
    return now - *message.exited_since >= in_flight_grace;
  };
  for (const auto& message : timed_) {
    const bool is_late = *message->deadline <= now;
    if (!is_late && !has_exited(*message)) {
      next_timer_ = std::min(next_timer_, *message->deadline);
      continue;
    }
    const auto removal = remove(*message);
    if (removal == Removal::busy) next_timer_ = now + std::chrono::milliseconds(1);
    if (removal != Removal::removed) continue;
    effects.complete(message, {.kind = is_late ? Outcome::Kind::timed_out : Outcome::Kind::exited, .failure = nullptr});
    if (message->is_send) to_flush_.insert(message->rank);
  }
}

bool EventLoop::is_finished() {
  if (!stopping_ || drop_pending_) return stopping_;
  bool has_frames = false;
  bool has_unsent = false;
  bool has_open = false;
  for (const auto& [rank, peer] : peers_) {
    if (peer.state != Peer::State::failed && peer.outbox.has_messages()) return false;
    if (peer.state != Peer::State::open) continue;
    has_open = true;
    has_unsent = has_unsent || peer.outbox.is_writing() || peer.connection->has_unsent();
    has_frames = has_frames || has_unsent || !peer.outbox.is_empty();
  }
  const auto now = Clock::now();
  if (!close_deadline_) close_deadline_ = now + (has_unsent ? max_unsent_wait : max_close_wait);
  if (!has_open || now >= *close_deadline_) return true;
  // The peers close their ends when they have read everything. Closing first could discard bytes in flight.
  if (has_frames || std::exchange(finished_sending_, true)) return false;
  for (const auto& [rank, peer] : peers_) {
    if (peer.state == Peer::State::open) peer.connection->finish_sending();
  }
  return false;
}

int EventLoop::milliseconds_to_wait() const {
  if (!to_flush_.empty() || (handler_ == Handler::none && !ready_.empty())) return 0;
  std::optional<Deadline> next;
  const auto until = [&](Deadline deadline) { next = std::min(next.value_or(deadline), deadline); };
  for (const int rank : lookups_) until(peers_.at(rank).next_lookup);
  if (!timed_.empty()) until(next_timer_);
  if (close_deadline_) until(*close_deadline_);
  if (const auto since = pending_since(); !since.empty())
    until(since.front() + PendingLimit::timeout_for(since.size()));
  if (!next) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

}  // namespace tutti::comm
