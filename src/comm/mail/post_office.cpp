#include "comm/mail/post_office.h"

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

#include "comm/engine/keep_process.h"
#include "comm/mail/incoming.h"
#include "comm/mail/outgoing.h"
#include "comm/members/waiting_room.h"
#include "core/thread_name.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr auto first_wait = std::chrono::milliseconds(1);
constexpr auto longest_wait = std::chrono::milliseconds(50);
constexpr auto longest_farewell = std::chrono::seconds(1);

std::string address_key(int rank) {
  return "mail/" + std::to_string(rank);
}

// Without the mutex: what users hang on to messages may send others.
void announce(AllEnded& all) {
  for (Ended& ended : all) {
    if (!ended.failure && ended.order->at_end) {
      try {
        ended.order->at_end(ended.source);
      } catch (...) {
        ended.failure = std::current_exception();
      }
    }
    ended.order->owner = nullptr;
    ended.order->end(std::move(ended.failure));
  }
  all.clear();
}

}  // namespace

class PostOffice::Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(const Rendezvous& rendezvous, int rank, const std::string& host)
      : store_(rendezvous.bulletin_store),
        secret_(rendezvous.secret),
        rank_(rank),
        nonce_(random_nonce()),
        bell_(::eventfd(0, EFD_CLOEXEC)) {
    try {
      listening_ = listen_on(host);
      store_->set(address_key(rank), PostalAddress{listening_.address, nonce_}.to_text());
    } catch (const std::exception& error) {
      throw PeerFailure("rank " + std::to_string(rank) + " cannot take messages at " + host + ": " + error.what(), {});
    }
  }

  /// The thread keeps the loop: what it tells may let go of the office.
  void start() {
    thread_ = std::thread([self = shared_from_this()] {
      name_this_thread("tutti-mail");
      self->run();
    });
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      in_haste_ = std::uncaught_exceptions() > 0;
    }
    ring();
    if (thread_.get_id() == std::this_thread::get_id()) {
      keeps_process_.emplace();
      thread_.detach();
    } else {
      thread_.join();
    }
  }

  void send(int peer, const Letter& letter, OrderPtr order) {
    {
      const std::lock_guard lock(mutex_);
      peer_of(peer).outgoing.add(letter, std::move(order));
    }
    ring();
  }

  void receive(std::uint64_t group, OrderPtr order) {
    AllEnded ended;
    {
      const std::lock_guard lock(mutex_);
      sorting_.receive(group, std::move(order), ended);
    }
    announce(ended);
    ring();
  }

  void end(std::uint64_t group, int source, const std::vector<int>& members, const std::exception_ptr& failure,
           bool sends_too) {
    AllEnded ended;
    {
      const std::lock_guard lock(mutex_);
      if (!sorting_.end(group, failure, ended)) return;
      for (const int member : members) {
        const auto found = peers_.find(member);
        if (found == peers_.end() || !found->second.greeted_groups.contains(group)) continue;
        if (sends_too) found->second.outgoing.end(group, failure, ended);
        found->second.outgoing.add({.kind = Letter::Kind::farewell, .group = group, .source = source}, nullptr);
      }
    }
    announce(ended);
    ring();
  }

  void note_group(int peer, std::uint64_t group) {
    const std::lock_guard lock(mutex_);
    peer_of(peer).greeted_groups.insert(group);
  }

 private:
  struct Peer {
    Peer(int own_rank, const JobSecretPtr& secret) : outgoing(own_rank, secret) {}
    Outgoing outgoing;
    std::set<std::uint64_t> greeted_groups;
    Clock::time_point next_look{};
    std::chrono::milliseconds pause = first_wait;
  };

  Peer& peer_of(int rank) { return peers_.try_emplace(rank, rank_, secret_).first->second; }

  void ring() {
    const std::uint64_t once = 1;
    (void)!::write(bell_.get(), &once, sizeof(once));
  }

  // All below runs on the thread, or with the mutex held, or both.

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      AllEnded ended;
      if (ending_ && nothing_to_send()) break;
      look_up_addresses(lock, ended);
      look_at_deadlines(ended);
      lock.unlock();
      announce(ended);
      lock.lock();
      // What has passed its deadline just now may have been the last: then nothing would end the wait.
      if (!(ending_ && nothing_to_send())) wait_and_work(lock);
    }
    AllEnded ended;
    sorting_.end_all(ended);
    for (auto& incoming : incoming_) drop(incoming, ended);
    for (auto& [rank, peer] : peers_) peer.outgoing.let_go(ended);
    lock.unlock();
    announce(ended);
  }

  bool nothing_to_send() {
    if (in_haste_) return true;
    bool orders = false;
    bool farewells = false;
    for (const auto& [rank, peer] : peers_) {
      orders = orders || !peer.outgoing.idle();
      farewells = farewells || peer.outgoing.says_farewell();
    }
    if (orders || !farewells) return !orders;
    // A courtesy, which nobody may be there to take.
    const auto now = Clock::now();
    if (!farewells_until_) farewells_until_ = now + longest_farewell;
    return now >= *farewells_until_;
  }

  // A rank that has not sent or received anything yet has no address: it is asked for now and then.
  void look_up_addresses(std::unique_lock<std::mutex>& lock, AllEnded& ended) {
    for (auto& [rank, peer] : peers_) {
      const auto now = Clock::now();
      if (!peer.outgoing.needs_address() || now < peer.next_look) continue;
      std::optional<std::string> text;
      lock.unlock();
      try {
        if (store_->check({address_key(rank)})) text = store_->get_to_str(address_key(rank));
      } catch (const std::exception&) {
        // The store is gone: the deadline, or the peer's own end, tells.
      }
      lock.lock();
      if (text) {
        peer.outgoing.connect(PostalAddress::from_text(*text), ended);
        continue;
      }
      peer.next_look = now + peer.pause;
      peer.pause = std::min(2 * peer.pause, longest_wait);
    }
  }

  void look_at_deadlines(AllEnded& ended) {
    const auto now = Clock::now();
    const bool look_for_the_gone = now >= next_look_for_the_gone_;
    if (look_for_the_gone) next_look_for_the_gone_ = now + longest_wait;
    for (auto& [rank, peer] : peers_) peer.outgoing.look(now, look_for_the_gone, ended);
    sorting_.look(now, look_for_the_gone, ended);
    for (auto& incoming : incoming_) {
      if (incoming.body()) SortingRoom::look(*incoming.body(), now, ended);
    }
  }

  void wait_and_work(std::unique_lock<std::mutex>& lock) {
    std::vector<pollfd> wishes{{.fd = bell_.get(), .events = POLLIN, .revents = 0},
                               {.fd = has_place() ? listening_.socket.get() : -1, .events = POLLIN, .revents = 0}};
    std::vector<int> ranks;
    for (const auto& [rank, peer] : peers_) {
      if (const auto wish = peer.outgoing.wish()) {
        wishes.push_back(*wish);
        ranks.push_back(rank);
      }
    }
    const std::size_t first_incoming = wishes.size();
    for (const auto& incoming : incoming_) {
      wishes.push_back({incoming.is_held() ? -1 : incoming.descriptor(), POLLIN, 0});
    }
    const int timeout = milliseconds_to_wait();
    lock.unlock();
    ::poll(wishes.data(), wishes.size(), timeout);
    AllEnded ended;
    if (wishes[0].revents != 0) {
      std::uint64_t count = 0;
      (void)!::read(bell_.get(), &count, sizeof(count));
    }
    // Incoming connections are read without the lock: nobody else touches them.
    auto next = incoming_.begin();
    for (std::size_t i = first_incoming; i < wishes.size(); ++i) {
      const auto incoming = next++;
      if ((wishes[i].revents == 0 && !incoming->is_held()) || read(*incoming, ended)) continue;
      const std::lock_guard again(mutex_);
      drop(*incoming, ended);
      incoming_.erase(incoming);
    }
    if (wishes[1].revents != 0) let_in(ended);
    turn_away();
    lock.lock();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (wishes[i + 2].revents != 0) peer_of(ranks[i]).outgoing.work(wishes[i + 2].revents, ended);
    }
    lock.unlock();
    announce(ended);
    lock.lock();
  }

  /// When those connected that have not said who they are, the earliest first.
  std::vector<Deadline> strangers() const {
    std::vector<Deadline> since;
    for (const auto& incoming : incoming_) {
      if (incoming.rank() < 0) since.push_back(incoming.since());
    }
    return since;
  }

  bool has_place() const { return WaitingRoom::has_place(strangers().size()); }

  void let_in(AllEnded& ended) {
    while (has_place()) {
      auto socket = accept_from(listening_.socket);
      if (!socket) return;
      auto& incoming = incoming_.emplace_back(std::move(*socket), nonce_, secret_, Clock::now());
      if (!read(incoming, ended)) incoming_.pop_back();  // before it has said who it is
    }
  }

  void turn_away() {
    auto count = WaitingRoom::turned_away(strangers(), Clock::now());
    std::erase_if(incoming_, [&](Incoming& incoming) {
      if (count == 0 || incoming.rank() >= 0) return false;
      --count;
      return true;
    });
  }

  int milliseconds_to_wait() {
    std::optional<Deadline> next;
    const auto until = [&](Deadline deadline) { next = std::min(next.value_or(deadline), deadline); };
    for (const auto& [rank, peer] : peers_) {
      if (const auto deadline = peer.outgoing.next_deadline()) until(*deadline);
      if (peer.outgoing.needs_address()) until(peer.next_look);
    }
    if (const auto deadline = sorting_.next_deadline()) {
      until(*deadline);
      until(next_look_for_the_gone_);
    }
    for (auto& incoming : incoming_) {
      if (!incoming.body()) continue;
      const auto& order = incoming.body()->message ? incoming.body()->message->order : incoming.body()->order;
      if (order) until(order->deadline);
    }
    if (farewells_until_) until(*farewells_until_);
    if (const auto since = strangers(); !since.empty()) until(since.front() + WaitingRoom::longest(since.size()));
    if (!next) return -1;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*next - Clock::now()).count() + 1;
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  }

  /// The message whose letter has come gets its memory. Returns false where there is none now.
  bool begin(Incoming& incoming, AllEnded& ended) {
    const std::lock_guard lock(mutex_);
    incoming.hold(true);
    try {
      if (!sorting_.has_room_for(incoming.letter())) return false;
      incoming.body() = sorting_.begin(incoming.letter(), incoming.rank(), ended);
    } catch (const std::bad_alloc&) {
      return false;
    }
    incoming.hold(false);
    return true;
  }

  /// Returns false at the connection's end.
  bool read(Incoming& incoming, AllEnded& ended) {
    if (incoming.is_held() && !begin(incoming, ended)) return true;
    for (;;) {
      switch (incoming.read()) {
        case Incoming::State::nothing:
          return true;
        case Incoming::State::ended:
          return false;
        case Incoming::State::letter:
          if (!begin(incoming, ended)) return true;
          break;
        case Incoming::State::message: {
          const std::lock_guard lock(mutex_);
          sorting_.complete(*incoming.body(), ended);
          incoming.body().reset();
          break;
        }
      }
    }
  }

  /// The connection has ended.
  void drop(Incoming& incoming, AllEnded& ended) {
    sorting_.lose(incoming.rank(), incoming.body() ? &*incoming.body() : nullptr, ended);
    incoming.body().reset();
    // Its end closes both connections, one after the other.
    const auto peer = peers_.find(incoming.rank());
    if (peer != peers_.end()) peer->second.outgoing.lose(ended);
  }

  std::optional<KeepProcess> keeps_process_;  // goes last
  c10::intrusive_ptr<c10d::Store> store_;
  const JobSecretPtr secret_;  // null where there is none
  const int rank_;
  const Nonce nonce_;
  const FileDescriptor bell_;
  Listening listening_;

  std::mutex mutex_;
  bool ending_ = false;
  bool in_haste_ = false;
  std::map<int, Peer> peers_;  // by rank in the job
  SortingRoom sorting_;
  Deadline next_look_for_the_gone_{};
  std::optional<Deadline> farewells_until_;
  std::list<Incoming> incoming_;  // of the thread
  std::thread thread_;
};

PostOffice::PostOffice(const Rendezvous& rendezvous, int rank, const std::string& host)
    : loop_(std::make_shared<Loop>(rendezvous, rank, host)) {
  loop_->start();
}

PostOffice::~PostOffice() {
  loop_->close();
}

void PostOffice::send(int peer, const Letter& letter, OrderPtr order) {
  loop_->note_group(peer, letter.group);
  loop_->send(peer, letter, std::move(order));
}

void PostOffice::receive(std::uint64_t group, OrderPtr order) {
  loop_->receive(group, std::move(order));
}

void PostOffice::end(std::uint64_t group, int source, const std::vector<int>& members, std::exception_ptr failure,
                     bool sends_too) {
  loop_->end(group, source, members, failure, sends_too);
}

}  // namespace tutti::comm
