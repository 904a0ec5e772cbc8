// The part of the event loop that any thread runs: messages, and writing.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "comm/transport/tcp/event_loop.h"

namespace tutti::comm {
namespace {

// A longer message is written by the loop's thread, so that the calling thread goes on.
constexpr std::size_t max_written_by_caller = 64 * 1024;

std::string describe(const EndpointAddress& address) {
  return format_address(address.socket.host, address.socket.port);
}

}  // namespace

void EventLoop::close() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    drop_pending_ = std::uncaught_exceptions() > 0;
  }
  interrupt();
  wake();
  if (thread_.get_id() == std::this_thread::get_id()) {
    exit_guard_.emplace();
    thread_.detach();
  } else {
    thread_.join();
  }
}

std::string EventLoop::at_address(int rank) const {
  const EndpointAddress& address = addresses_.at(static_cast<std::size_t>(rank));
  return " at " + describe(address) +
         (is_loopback(address.socket.host)
              ? ", which is the loopback address of that rank's machine: set GLOO_SOCKET_IFNAME there"
              : "") +
         ". Check that no firewall is between the nodes (TUTTI_PORT_RANGE sets the ports) and that its network is "
         "reachable (GLOO_SOCKET_IFNAME chooses one)";
}

std::string EventLoop::why_not_connected(int rank) {
  const std::lock_guard lock(mutex_);
  const auto state = peers_[rank].state;
  const bool is_connecting = state == Peer::State::connecting || state == Peer::State::awaited;
  return is_connecting ? "no answer" + at_address(rank) : "";
}

void EventLoop::post(const MessagePtr& message) {
  Effects effects;
  Lock lock(mutex_);
  if (message->deadline) add_timed(message);
  if (message->rank != any_source) contact(message->rank, effects);
  if (!message->is_send) {
    matcher_.receive(message, effects);
    resume_paused();
    return apply(lock, effects, message.get());
  }
  if (auto reason = matcher_.end_reason(message->channel, message->rank); reason.kind != Outcome::Kind::completed) {
    effects.complete(message, std::move(reason));
    return apply(lock, effects, message.get());
  }
  Peer& peer = peers_[message->rank];
  peer.outbox.add(message);
  if (message->memory.size() <= max_written_by_caller || may_run_callbacks_) {
    flush(lock, message->rank, effects);
  } else if (peer.state == Peer::State::open && to_flush_.insert(message->rank).second) {
    wake();
  }
  apply(lock, effects, message.get());
}

bool EventLoop::cancel(const MessagePtr& message) {
  Effects effects;
  Lock lock(mutex_);
  auto removal = remove(*message, effects);
  for (; removal == Removal::busy; removal = remove(*message, effects)) changed_.wait(lock);
  timed_.erase(message);
  if (message->is_send && removal == Removal::removed) flush(lock, message->rank, effects);
  apply(lock, effects);
  return removal == Removal::removed;
}

Removal EventLoop::remove(const Message& message, Effects& effects) {
  if (message.is_send) {
    try {
      return peers_[message.rank].outbox.remove(message);
    } catch (const std::bad_alloc&) {  // for a copy of the bytes that must follow: without them no frame can follow
      fail_peer(message.rank, {.kind = Outcome::Kind::disconnected}, effects);
      return Removal::absent;
    }
  }
  if (matcher_.remove(message)) return Removal::removed;
  for (const auto& [descriptor, connection] : connections_) {
    Body& body = connection->body;
    if (body.destination.receiver().get() != &message) continue;
    if (!body.destination.unexpected) {
      if (connection->is_reading) return Removal::busy;
      body.to = nullptr;
    }
    body.destination.receiver() = nullptr;
    return Removal::removed;
  }
  return Removal::absent;
}

void EventLoop::close_channel(const ClosedChannel& closed, bool cancel_sends) {
  const Outcome outcome{.kind = Outcome::Kind::closed, .failure = closed.failure};
  Effects effects;
  std::vector<std::function<bool()>> released;  // destroyed without the lock
  Lock lock(mutex_);
  if (!matcher_.close_channel(closed, effects)) return;
  std::vector<MessagePtr> begun;
  const auto in_channel = [&](const Message& message) { return message.channel == closed.channel; };
  for (auto& [rank, peer] : peers_) {
    for (auto& message : peer.outbox.messages(in_channel)) {
      // A send that goes on must not keep the communicator, which has references to this endpoint.
      if (!cancel_sends) released.push_back(std::exchange(message->is_peer_gone, nullptr));
      if (cancel_sends) begun.push_back(std::move(message));
    }
    if (!peer.connection) continue;
    const auto& receive = peer.connection->body.destination.receiver();
    if (receive && in_channel(*receive)) begun.push_back(receive);
  }
  for (const auto& message : begun) {
    auto removal = remove(*message, effects);
    for (; removal == Removal::busy; removal = remove(*message, effects)) changed_.wait(lock);
    if (removal == Removal::removed) effects.complete(message, outcome);
  }
  for (auto& [rank, peer] : peers_) {
    if (peer.state != Peer::State::open || !closed.concerns(rank)) continue;
    peer.outbox.add({.kind = FrameHeader::Kind::close, .channel = closed.channel});
    flush(lock, rank, effects);
  }
  changed_.wait(lock, [&] { return copying_ == 0; });
  resume_paused();
  apply(lock, effects);
}

void EventLoop::contact(int rank, Effects& effects) {
  try {
    make_connection(rank);
  } catch (const std::system_error& error) {
    fail_peer(rank, {.kind = Outcome::Kind::not_connected, .detail = error.what()}, effects);
  }
}

void EventLoop::make_connection(int rank) {
  Peer& peer = peers_[rank];
  if (peer.state != Peer::State::idle) return;
  auto connection = std::make_shared<Connection>(addresses_.at(static_cast<std::size_t>(rank)), rank_, rank, security_);
  limit_greeting(*connection);
  watch(connection);
  peer.connection = std::move(connection);
  peer.state = Peer::State::connecting;
}

Outcome EventLoop::disconnected(int error) {
  const bool is_network = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
  return {.kind = is_network ? Outcome::Kind::network_lost : Outcome::Kind::disconnected};
}

/// The peer's kernel has memory for the few bytes of a greeting.
void EventLoop::limit_greeting(const Connection& connection) const {
  if (acknowledgement_timeout_.count() == 0) return;
  set_keepalive(connection.socket(), acknowledgement_timeout_);
  set_user_timeout(connection.socket(), acknowledgement_timeout_);
}

void EventLoop::watch(const ConnectionPtr& connection) {
  try {
    sockets_.watch(connection->descriptor(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    connections_.emplace(connection->descriptor(), connection);
  } catch (...) {
    drop(connection);
    throw;
  }
}

void EventLoop::flush(Lock& lock, int rank, Effects& effects) {
  Peer& peer = peers_[rank];
  if (peer.outbox.is_writing()) {
    peer.write_again = true;
    return;
  }
  while (peer.state == Peer::State::open && (!peer.outbox.is_empty() || peer.connection->has_unsent())) {
    peer.write_again = false;
    auto parts = peer.outbox.begin_write();
    const ConnectionPtr connection = peer.connection;
    lock.unlock();
    const auto count = connection->write(parts);
    const int error = errno;
    lock.lock();
    peer.outbox.end_write(count > 0 ? static_cast<std::size_t>(count) : 0, effects);
    changed_.notify_all();
    if (peer.state == Peer::State::failed) return fail_outbox(peer, effects);
    if (count >= 0 || error == EINTR) continue;
    if (error != EAGAIN) return fail_peer(rank, disconnected(error), effects);
    if (!peer.write_again) return;
  }
}

void EventLoop::fail_peer(int rank, Outcome reason, Effects& effects) {
  Peer& peer = peers_[rank];
  if (peer.state == Peer::State::failed) return;
  const bool is_lost = reason.kind == Outcome::Kind::disconnected || reason.kind == Outcome::Kind::network_lost;
  if (is_lost && peer.state != Peer::State::open) reason.detail = "no connection" + at_address(rank);
  peer.state = Peer::State::failed;
  peer.failure = std::move(reason);
  const auto connection = std::exchange(peer.connection, nullptr);
  Body none;
  matcher_.on_disconnect(rank, connection && !connection->is_reading ? connection->body : none, peer.failure, effects);
  if (connection) drop(connection);
  fail_outbox(peer, effects);
  resume_paused();
  changed_.notify_all();
}

/// A write in progress does it when it ends.
void EventLoop::fail_outbox(Peer& peer, Effects& effects) {
  if (peer.outbox.is_writing()) return;
  for (auto& message : peer.outbox.messages([](const Message&) { return true; }))
    effects.complete(std::move(message), peer.failure);
  peer.outbox.clear();
}

void EventLoop::drop(const ConnectionPtr& connection) {
  sockets_.forget(connection->descriptor());
  paused_.erase(connection);
  std::erase(pending_, connection);
  connections_.erase(connection->descriptor());
}

void EventLoop::resume_paused() {
  if (paused_.empty()) return;
  ready_.insert(ready_.end(), paused_.begin(), paused_.end());
  paused_.clear();
  handler_ == Handler::waiter ? interrupt() : wake();
}

void EventLoop::add_timed(const MessagePtr& message) {
  const bool was_empty = timed_.empty();
  timed_.insert(message);
  const auto first = std::min(*message->deadline, Clock::now() + std::chrono::milliseconds(50));
  if (!was_empty && next_timer_ <= first) return;
  next_timer_ = first;
  wake();
}

void EventLoop::apply(Lock& lock, Effects& effects, const Message* posted, Callbacks callbacks) {
  for (const auto& [rank, header] : std::exchange(effects.replies, {})) {
    Peer& peer = peers_[rank];
    if (peer.state != Peer::State::open || finished_sending_) continue;
    peer.outbox.add_urgent(header);
    flush(lock, rank, effects);
  }
  // A callback may hold the last reference to a communicator when main() has returned.
  std::optional<ExitGuard> exit_guard;
  auto completions = std::exchange(effects.completions, {});
  bool copies = false;
  for (const auto& completion : completions) {
    if (completion.message->deadline) timed_.erase(completion.message);
    copies = copies || completion.bytes;
    if (completion.message->has_callbacks()) exit_guard.emplace();
  }
  copying_ += copies ? 1 : 0;
  lock.unlock();
  if (copies) {
    for (const auto& [message, outcome, bytes] : completions) {
      if (bytes && !message->memory.empty()) std::memcpy(message->memory.data(), bytes.get(), message->memory.size());
    }
    const std::lock_guard again(mutex_);
    --copying_;
    changed_.notify_all();
  }
  // A callback may call the communicator, which a thread in a call must not do, and may wait for a thread that awaits
  // another of the messages or handles the events. A message that is being posted has no callbacks so far.
  const auto with_callbacks = std::ranges::stable_partition(completions, [&](const Effects::Completion& completion) {
    return !completion.message->has_callbacks() || completion.message.get() == posted;
  });
  if (callbacks == Callbacks::defer && !with_callbacks.empty()) {
    for (auto& completion : with_callbacks) completion.bytes = nullptr;  // they have been copied
    const std::lock_guard again(mutex_);
    std::ranges::move(with_callbacks, std::back_inserter(callbacks_));
    if (!callbacks_guard_) callbacks_guard_.emplace();
    completions.erase(with_callbacks.begin(), with_callbacks.end());
    wake();
  }
  for (const auto& completion : completions) completion.message->complete(completion.outcome);
}

}  // namespace tutti::comm
