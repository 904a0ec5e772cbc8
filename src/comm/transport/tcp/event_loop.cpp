// The thread of the event loop.
#include "comm/transport/tcp/event_loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "comm/backend/describe.h"
#include "core/pending_limit.h"
#include "core/thread_name.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr auto exit_check_interval = std::chrono::milliseconds(50);
// A message that a rank sent before it exited may still be in flight.
constexpr auto in_flight_grace = std::chrono::milliseconds(300);
constexpr auto max_close_wait = std::chrono::seconds(1);
constexpr auto max_unsent_wait = std::chrono::seconds(10);  // for encrypted bytes of messages that count as sent
constexpr int max_reads_in_turn = 64;

}  // namespace

EventLoop::EventLoop(ListeningSocket&& listening, const Nonce& nonce, int rank, std::vector<EndpointAddress> addresses,
                     ConnectionSecurity security, std::chrono::milliseconds acknowledgement_timeout)
    : security_(std::move(security)),
      acknowledgement_timeout_(acknowledgement_timeout),
      rank_(rank),
      nonce_(nonce),
      addresses_(std::move(addresses)),
      listening_(std::move(listening)) {
  poller_.watch(sockets_.descriptor(), EPOLLIN);
  sockets_.watch(listening_.socket.get(), EPOLLIN);
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
    expire(effects);
    check_acknowledgements(effects);
    limit_pending(lock, effects);
    may_run_callbacks_ = true;
    for (const int rank : std::exchange(to_flush_, {})) flush(lock, rank, effects);
    apply(lock, effects, nullptr, Callbacks::run);
    lock.lock();
    may_run_callbacks_ = false;
    if (callbacks_.empty()) callbacks_guard_.reset();
  }
  changed_.wait(lock, [&] { return handler_ == Handler::none; });
  Effects effects{.completions = std::exchange(callbacks_, {}), .replies = {}};
  for (auto& [rank, peer] : peers_) {
    changed_.wait(lock, [&peer = peer] { return !peer.outbox.is_writing(); });
    fail_peer(rank, {.kind = Outcome::Kind::not_sent}, effects);
  }
  connections_.clear();
  apply(lock, effects, nullptr, Callbacks::run);
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
  Outcome reason{.kind = Outcome::Kind::disconnected};
  try {
    switch (connection->greet()) {
      case Connection::Greeting::pending:
        return false;
      case Connection::Greeting::hello:
        accept_hello(connection);
        break;
      case Connection::Greeting::open:
        break;
      case Connection::Greeting::duplicate: {
        Peer& peer = peers_.at(connection->rank());
        peer.state = Peer::State::awaited;
        peer.unacknowledged_since = Clock::now();
        peer.connection = nullptr;
        drop(connection);
        return false;
      }
      case Connection::Greeting::not_authenticated:
        reason.kind = Outcome::Kind::not_authenticated;
        break;
    }
  } catch (const std::system_error& error) {
    reason = disconnected(error.code().value());
  } catch (const std::bad_alloc&) {
    // The connection ends.
  }
  if (connection->is_open()) {
    Peer& peer = peers_[connection->rank()];
    peer.state = Peer::State::open;
    peer.unacknowledged_since.reset();
    set_user_timeout(connection->socket(), {});  // it would end the connection to a rank that is late: see below
    changed_.notify_all();
    for (const auto& [channel, closed] : matcher_.closed_channels()) {
      if (closed.concerns(connection->rank())) peer.outbox.add({.kind = FrameHeader::Kind::close, .channel = channel});
    }
    flush(lock, connection->rank(), effects);
    return true;
  }
  if (connection->rank() >= 0) fail_peer(connection->rank(), std::move(reason), effects);
  drop(connection);
  return false;
}

/// A connection that is not used is not open afterwards. Throws std::system_error.
void EventLoop::accept_hello(const ConnectionPtr& connection) {
  const Hello& hello = connection->hello();
  const bool is_rank = hello.rank >= 0 && std::cmp_less(hello.rank, addresses_.size()) && hello.rank != rank_;
  if (hello.nonce != nonce_ || !is_rank) return;
  const int rank = static_cast<int>(hello.rank);
  Peer& peer = peers_[rank];
  if (peer.state == Peer::State::open || peer.state == Peer::State::failed) return;
  if (peer.state == Peer::State::connecting) {
    // A firewall may drop the packets of the lower rank only.
    if (rank_ < rank && !peer.connection->is_connecting()) return connection->answer(Verdict::duplicate);
    drop(std::exchange(peer.connection, nullptr));
  }
  peer.connection = connection;
  peer.state = Peer::State::connecting;
  connection->set_rank(rank);
  std::erase(pending_, connection);
  connection->answer(Verdict::accepted);
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
  fail_peer(connection->rank(), disconnected(connection->error()), effects);
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
      if (peer.state != Peer::State::open) return false;  // messages of a failed peer would never end
    } else if (header->kind == FrameHeader::Kind::refuse) {
      if (!peer.outbox.on_refuse(header->id, header->bytes, effects)) return false;
    } else {
      try {
        if (matcher_.can_accept(*header, connection.rank())) {
          if (!matcher_.on_frame(*header, connection.rank(), connection.body, effects)) return false;
          if (header->kind == FrameHeader::Kind::withdraw) resume_paused();
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
    if (!socket) {
      accept_pause_.on_error(errno, Clock::now());
      return;
    }
    try {
      pending_.push_back(std::make_shared<Connection>(*std::move(socket), security_, Clock::now()));
      limit_greeting(*pending_.back());
      watch(ConnectionPtr(pending_.back()));
    } catch (const std::exception&) {
      // No memory: the client finds its connection closed.
    }
  }
}

void EventLoop::limit_pending(Lock& lock, Effects& effects) {
  for (auto count = PendingLimit::to_evict(pending_, Clock::now(), &Connection::since); count > 0; --count) {
    const ConnectionPtr first = pending_.front();
    greet(lock, first, effects);  // its hello may have come while no thread handled events
    if (!pending_.empty() && pending_.front() == first) drop(first);
  }
  const bool accepts = PendingLimit::has_capacity(pending_.size()) && accept_pause_.is_over(Clock::now());
  sockets_.watch(listening_.socket.get(), accepts ? std::uint32_t{EPOLLIN} : 0);
}

void EventLoop::expire(Effects& effects) {
  const auto now = Clock::now();
  if (timed_.empty() || now < next_timer_) return;
  next_timer_ = now + exit_check_interval;
  const auto is_open = [&](int rank) {
    const auto peer = peers_.find(rank);
    return peer != peers_.end() && peer->second.state == Peer::State::open;
  };
  // A connected rank may send until its `close` comes. A message that has begun to arrive goes on.
  const auto may_arrive = [&](const Message& message) {
    if (message.rank != any_source) return is_open(message.rank);
    return !matcher_.is_waiting(message) || std::ranges::any_of(message.sources, [&](int rank) {
      return is_open(rank) && matcher_.end_reason(message.channel, rank).kind == Outcome::Kind::completed;
    });
  };
  const auto have_left = [&](const Message& message) {
    return message.rank == any_source && matcher_.is_waiting(message) &&
           std::ranges::all_of(message.sources, [&](int rank) {
             return rank == rank_ || matcher_.end_reason(message.channel, rank).kind != Outcome::Kind::completed;
           });
  };
  const auto is_peer_gone = [&](Message& message) {
    if (have_left(message)) return true;
    if (may_arrive(message) || !message.is_peer_gone || !message.is_peer_gone()) {
      message.gone_since.reset();
      return false;
    }
    if (!message.gone_since) message.gone_since = now;
    return now - *message.gone_since >= in_flight_grace;
  };
  for (const auto& message : timed_) {
    Outcome outcome{.kind = Outcome::Kind::timed_out,
                    .failure = message->failure_of_peer ? message->failure_of_peer() : nullptr};
    if (outcome.failure) {
      outcome.kind = Outcome::Kind::peer_failed;
    } else if (*message->deadline > now) {
      if (!is_peer_gone(*message)) {
        next_timer_ = std::min(next_timer_, *message->deadline);
        continue;
      }
      outcome.kind = Outcome::Kind::exited;
    }
    const auto removal = remove(*message, effects);
    if (removal == Removal::busy) next_timer_ = now + std::chrono::milliseconds(1);
    if (removal != Removal::removed) continue;
    effects.complete(message, std::move(outcome));
    if (message->is_send) to_flush_.insert(message->rank);
  }
}

// The kernel's limit for unacknowledged bytes is not used, because a rank that is late for a call reads nothing: its
// machine acknowledges, and takes nothing. Without bytes in flight keepalive ends the connection.
void EventLoop::check_acknowledgements(Effects& effects) {
  const auto now = Clock::now();
  if (acknowledgement_timeout_.count() == 0 || now < next_look_) return;
  const auto interval = acknowledgement_timeout_ / 32;
  const bool was_late = now - next_look_ > interval;  // this process may have been stopped
  next_look_ = now + interval;
  for (auto& [rank, peer] : peers_) {
    auto silent_since = now;
    if (peer.state == Peer::State::open) {
      const FileDescriptor& socket = peer.connection->socket();
      const bool is_unacknowledged = has_unacknowledged_bytes(socket);
      if (!is_unacknowledged || was_late) peer.unacknowledged_since.reset();
      if (!is_unacknowledged) continue;
      if (!peer.unacknowledged_since) peer.unacknowledged_since = now;
      silent_since = std::max(*peer.unacknowledged_since, now - since_last_acknowledgement(socket));
    } else if (peer.state == Peer::State::awaited) {
      silent_since = *peer.unacknowledged_since;
    }
    if (now - silent_since >= acknowledgement_timeout_) {
      fail_peer(rank, {.kind = Outcome::Kind::network_lost}, effects);
    }
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

std::chrono::milliseconds EventLoop::time_to_wait() const {
  if (!to_flush_.empty() || (handler_ == Handler::none && !ready_.empty())) return {};
  const auto now = Clock::now();
  auto next = now + max_wait;
  if (!timed_.empty()) next = std::min(next, next_timer_);
  if (acknowledgement_timeout_.count() > 0 && !peers_.empty()) next = std::min(next, next_look_);
  if (close_deadline_) next = std::min(next, *close_deadline_);
  if (!accept_pause_.is_over(now)) next = std::min(next, accept_pause_.end());
  if (!pending_.empty()) next = std::min(next, pending_.front()->since() + PendingLimit::timeout_for(pending_.size()));
  return std::chrono::ceil<std::chrono::milliseconds>(next - now);
}

}  // namespace tutti::comm
