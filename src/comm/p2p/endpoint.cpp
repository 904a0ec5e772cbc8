#include "comm/p2p/endpoint.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "comm/os/exit_guard.h"
#include "comm/p2p/inbound_connection.h"
#include "comm/p2p/outbound_connection.h"
#include "core/pending_limit.h"
#include "core/thread_name.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr auto first_lookup_interval = std::chrono::milliseconds(1);
constexpr auto max_lookup_interval = std::chrono::milliseconds(50);
constexpr auto max_close_wait = std::chrono::seconds(1);

std::string address_key(int rank) {
  return "p2p/" + std::to_string(rank);
}

// Without the mutex: what users hang on to messages may send others.
void deliver(Completions& completions) {
  for (Completion& completion : completions) {
    if (!completion.failure && completion.request->on_completed) {
      try {
        completion.request->on_completed(completion.source);
      } catch (...) {
        completion.failure = std::current_exception();
      }
    }
    completion.request->owner = nullptr;
    completion.request->mark_completed(std::move(completion.failure));
  }
  completions.clear();
}

}  // namespace

class P2pEndpoint::EventLoop : public std::enable_shared_from_this<EventLoop> {
 public:
  EventLoop(const Rendezvous& rendezvous, int rank, const std::string& host)
      : store_(rendezvous.failure_store),
        secret_(rendezvous.secret),
        rank_(rank),
        nonce_(random_nonce()),
        wake_fd_(::eventfd(0, EFD_CLOEXEC)) {
    try {
      listening_ = listen_tcp(host);
      store_->set(address_key(rank), EndpointAddress{listening_.address, nonce_}.to_text());
    } catch (const std::exception& error) {
      throw PeerError(
          "rank " + std::to_string(rank) + " cannot take messages at " + host + ": " + first_line(error.what()), {});
    }
  }

  /// The thread owns a reference to the loop, because a callback may destroy the endpoint.
  void start() {
    thread_ = std::thread([self = shared_from_this()] {
      name_this_thread("tutti-p2p");
      self->run();
    });
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      drop_pending_ = std::uncaught_exceptions() > 0;
    }
    wake();
    if (thread_.get_id() == std::this_thread::get_id()) {
      exit_guard_.emplace();
      thread_.detach();
    } else {
      thread_.join();
    }
  }

  void send(int peer, const MessageHeader& header, RequestPtr request) {
    {
      const std::lock_guard lock(mutex_);
      peer_of(peer).outbound.add(header, std::move(request));
    }
    wake();
  }

  void receive(std::uint64_t group, RequestPtr request) {
    Completions completions;
    {
      const std::lock_guard lock(mutex_);
      matcher_.receive(group, std::move(request), completions);
    }
    deliver(completions);
    wake();
  }

  void close_group(std::uint64_t group, int source, const std::vector<int>& members, const std::exception_ptr& failure,
                   bool cancel_sends) {
    Completions completions;
    {
      const std::lock_guard lock(mutex_);
      if (!matcher_.close_group(group, failure, completions)) return;
      for (const int member : members) {
        const auto found = peers_.find(member);
        if (found == peers_.end() || !found->second.contacted_groups.contains(group)) continue;
        if (cancel_sends) found->second.outbound.cancel_group(group, failure, completions);
        found->second.outbound.add({.kind = MessageHeader::Kind::close, .group = group, .source = source}, nullptr);
      }
    }
    deliver(completions);
    wake();
  }

  void note_group(int peer, std::uint64_t group) {
    const std::lock_guard lock(mutex_);
    peer_of(peer).contacted_groups.insert(group);
  }

 private:
  struct Peer {
    Peer(int own_rank, const JobSecretPtr& secret) : outbound(own_rank, secret) {}
    OutboundConnection outbound;
    std::set<std::uint64_t> contacted_groups;
    Clock::time_point next_lookup{};
    std::chrono::milliseconds lookup_interval = first_lookup_interval;
  };

  Peer& peer_of(int rank) { return peers_.try_emplace(rank, rank_, secret_).first->second; }

  void wake() {
    const std::uint64_t once = 1;
    (void)!::write(wake_fd_.get(), &once, sizeof(once));
  }

  // All below runs on the thread, or with the mutex held, or both.

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Completions completions;
      if (stopping_ && nothing_to_send()) break;
      look_up_addresses(lock, completions);
      expire_requests(completions);
      lock.unlock();
      deliver(completions);
      lock.lock();
      // What has passed its deadline just now may have been the last: then nothing would end the wait.
      if (!(stopping_ && nothing_to_send())) poll_once(lock);
    }
    Completions completions;
    matcher_.close_all(completions);
    for (auto& inbound : inbound_) disconnect(inbound, completions);
    for (auto& [rank, peer] : peers_) peer.outbound.discard(completions);
    lock.unlock();
    deliver(completions);
  }

  bool nothing_to_send() {
    if (drop_pending_) return true;
    bool has_requests = false;
    bool has_closes = false;
    for (const auto& [rank, peer] : peers_) {
      has_requests = has_requests || !peer.outbound.is_idle();
      has_closes = has_closes || peer.outbound.has_pending_close();
    }
    if (has_requests || !has_closes) return !has_requests;
    // Close frames are best effort: the peer may not be there to receive them.
    const auto now = Clock::now();
    if (!close_deadline_) close_deadline_ = now + max_close_wait;
    return now >= *close_deadline_;
  }

  // A rank that has not sent or received anything yet has no address: it is asked for now and then.
  void look_up_addresses(std::unique_lock<std::mutex>& lock, Completions& completions) {
    for (auto& [rank, peer] : peers_) {
      const auto now = Clock::now();
      if (!peer.outbound.needs_address() || now < peer.next_lookup) continue;
      std::optional<std::string> text;
      lock.unlock();
      try {
        if (store_->check({address_key(rank)})) text = store_->get_to_str(address_key(rank));
      } catch (const std::exception&) {
        // The connection to the store was lost. The deadline or the exit of the peer ends the request.
      }
      lock.lock();
      if (text) {
        peer.outbound.connect(EndpointAddress::from_text(*text), completions);
        continue;
      }
      peer.next_lookup = now + peer.lookup_interval;
      peer.lookup_interval = std::min(2 * peer.lookup_interval, max_lookup_interval);
    }
  }

  void expire_requests(Completions& completions) {
    const auto now = Clock::now();
    const bool check_exited = now >= next_exit_check_;
    if (check_exited) next_exit_check_ = now + max_lookup_interval;
    for (auto& [rank, peer] : peers_) peer.outbound.expire(now, check_exited, completions);
    matcher_.expire(now, check_exited, completions);
    for (auto& inbound : inbound_) {
      if (inbound.body()) TagMatcher::expire(*inbound.body(), now, completions);
    }
  }

  void poll_once(std::unique_lock<std::mutex>& lock) {
    std::vector<pollfd> poll_set{
        {.fd = wake_fd_.get(), .events = POLLIN, .revents = 0},
        {.fd = can_accept_connection() ? listening_.socket.get() : -1, .events = POLLIN, .revents = 0}};
    std::vector<int> ranks;
    for (const auto& [rank, peer] : peers_) {
      if (const auto events = peer.outbound.poll_events()) {
        poll_set.push_back(*events);
        ranks.push_back(rank);
      }
    }
    const std::size_t first_inbound = poll_set.size();
    for (const auto& inbound : inbound_) {
      poll_set.push_back({inbound.is_paused() ? -1 : inbound.descriptor(), POLLIN, 0});
    }
    const int timeout = milliseconds_to_wait();
    lock.unlock();
    ::poll(poll_set.data(), poll_set.size(), timeout);
    Completions completions;
    if (poll_set[0].revents != 0) {
      std::uint64_t count = 0;
      (void)!::read(wake_fd_.get(), &count, sizeof(count));
    }
    // Inbound connections are read without the lock, because only this thread uses them.
    auto next = inbound_.begin();
    for (std::size_t i = first_inbound; i < poll_set.size(); ++i) {
      const auto inbound = next++;
      if ((poll_set[i].revents == 0 && !inbound->is_paused()) || read(*inbound, completions)) continue;
      const std::lock_guard again(mutex_);
      disconnect(*inbound, completions);
      inbound_.erase(inbound);
    }
    if (poll_set[1].revents != 0) accept_connections(completions);
    evict_pending();
    lock.lock();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (poll_set[i + 2].revents != 0) peer_of(ranks[i]).outbound.on_ready(poll_set[i + 2].revents, completions);
    }
    lock.unlock();
    deliver(completions);
    lock.lock();
  }

  /// When those connected that have not said who they are, the earliest first.
  std::vector<Deadline> unauthenticated_since() const {
    std::vector<Deadline> since;
    for (const auto& inbound : inbound_) {
      if (inbound.rank() < 0) since.push_back(inbound.since());
    }
    return since;
  }

  bool can_accept_connection() const { return PendingLimit::has_capacity(unauthenticated_since().size()); }

  void accept_connections(Completions& completions) {
    while (can_accept_connection()) {
      auto socket = try_accept(listening_.socket);
      if (!socket) return;
      auto& inbound = inbound_.emplace_back(std::move(*socket), nonce_, secret_, Clock::now());
      if (!read(inbound, completions)) inbound_.pop_back();  // before it has said who it is
    }
  }

  void evict_pending() {
    auto count = PendingLimit::to_evict(unauthenticated_since(), Clock::now());
    std::erase_if(inbound_, [&](InboundConnection& inbound) {
      if (count == 0 || inbound.rank() >= 0) return false;
      --count;
      return true;
    });
  }

  int milliseconds_to_wait() {
    std::optional<Deadline> next;
    const auto until = [&](Deadline deadline) { next = std::min(next.value_or(deadline), deadline); };
    for (const auto& [rank, peer] : peers_) {
      if (const auto deadline = peer.outbound.next_deadline()) until(*deadline);
      if (peer.outbound.needs_address()) until(peer.next_lookup);
    }
    if (const auto deadline = matcher_.next_deadline()) {
      until(*deadline);
      until(next_exit_check_);
    }
    for (auto& inbound : inbound_) {
      if (!inbound.body()) continue;
      const auto& request = inbound.body()->message ? inbound.body()->message->request : inbound.body()->request;
      if (request) until(request->deadline);
    }
    if (close_deadline_) until(*close_deadline_);
    if (const auto since = unauthenticated_since(); !since.empty())
      until(since.front() + PendingLimit::timeout_for(since.size()));
    if (!next) return -1;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*next - Clock::now()).count() + 1;
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  }

  /// The message whose header has come gets its memory. Returns false where there is none now.
  bool allocate_body(InboundConnection& inbound, Completions& completions) {
    const std::lock_guard lock(mutex_);
    inbound.set_paused(true);
    try {
      if (!matcher_.can_accept(inbound.header())) return false;
      inbound.body() = matcher_.on_header(inbound.header(), inbound.rank(), completions);
    } catch (const std::bad_alloc&) {
      return false;
    }
    inbound.set_paused(false);
    return true;
  }

  /// Returns false at the connection's end.
  bool read(InboundConnection& inbound, Completions& completions) {
    if (inbound.is_paused() && !allocate_body(inbound, completions)) return true;
    for (;;) {
      switch (inbound.read()) {
        case InboundConnection::State::would_block:
          return true;
        case InboundConnection::State::closed:
          return false;
        case InboundConnection::State::header:
          if (!allocate_body(inbound, completions)) return true;
          break;
        case InboundConnection::State::message: {
          const std::lock_guard lock(mutex_);
          matcher_.on_body(*inbound.body(), completions);
          inbound.body().reset();
          break;
        }
      }
    }
  }

  /// The connection has ended.
  void disconnect(InboundConnection& inbound, Completions& completions) {
    matcher_.on_disconnect(inbound.rank(), inbound.body() ? &*inbound.body() : nullptr, completions);
    inbound.body().reset();
    // Its end closes both connections, one after the other.
    const auto peer = peers_.find(inbound.rank());
    if (peer != peers_.end()) peer->second.outbound.on_disconnect(completions);
  }

  std::optional<ExitGuard> exit_guard_;  // goes last
  c10::intrusive_ptr<c10d::Store> store_;
  const JobSecretPtr secret_;  // null where there is none
  const int rank_;
  const Nonce nonce_;
  const FileDescriptor wake_fd_;
  ListeningSocket listening_;

  std::mutex mutex_;
  bool stopping_ = false;
  bool drop_pending_ = false;
  std::map<int, Peer> peers_;  // by rank in the job
  TagMatcher matcher_;
  Deadline next_exit_check_{};
  std::optional<Deadline> close_deadline_;
  std::list<InboundConnection> inbound_;  // of the thread
  std::thread thread_;
};

P2pEndpoint::P2pEndpoint(const Rendezvous& rendezvous, int rank, const std::string& host)
    : loop_(std::make_shared<EventLoop>(rendezvous, rank, host)) {
  loop_->start();
}

P2pEndpoint::~P2pEndpoint() {
  loop_->close();
}

void P2pEndpoint::send(int peer, const MessageHeader& header, RequestPtr request) {
  loop_->note_group(peer, header.group);
  loop_->send(peer, header, std::move(request));
}

void P2pEndpoint::receive(std::uint64_t group, RequestPtr request) {
  loop_->receive(group, std::move(request));
}

void P2pEndpoint::close_group(std::uint64_t group, int source, const std::vector<int>& members,
                              std::exception_ptr failure, bool cancel_sends) {
  loop_->close_group(group, source, members, failure, cancel_sends);
}

}  // namespace tutti::comm
