#include "comm/transport/thread_transport.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

namespace tutti::comm {
namespace {

struct Slot {
  enum class State { waiting, copying, done, closed };
  Buffer buffer;
  State state = State::waiting;
};

/// Also the board for the failure reports of its ranks.
class ThreadHub final : public FailureBoard {
 public:
  explicit ThreadHub(int size)
      : disconnected_(static_cast<std::size_t>(size)), failure_reports_(disconnected_.size()) {}

  int size() const { return static_cast<int>(disconnected_.size()); }

  std::shared_ptr<Slot> send(int from, int to, Tag tag, const Buffer& buffer) {
    return match(sends_, receives_, from, to, tag, buffer, true);
  }
  std::shared_ptr<Slot> receive(int from, int to, Tag tag, const Buffer& buffer) {
    return match(receives_, sends_, from, to, tag, buffer, false);
  }

  void wait(const Slot& slot, int peer, Deadline deadline) {
    std::unique_lock lock(mutex_);
    // A copy that has begun is always awaited: it ends soon, and its memory must not be given back before.
    const auto finished = [&] { return slot.state == Slot::State::done || slot.state == Slot::State::closed; };
    if (!changed_.wait_until(lock, deadline, finished) && slot.state != Slot::State::copying) {
      throw TransferError(TransferError::Kind::timeout, {peer}, "timed out");
    }
    changed_.wait(lock, finished);
    if (slot.state == Slot::State::closed) {
      throw TransferError(TransferError::Kind::connection_closed, {peer}, "connection closed");
    }
  }

  void disconnect(int rank) {
    std::unique_lock lock(mutex_);
    disconnected_[static_cast<std::size_t>(rank)] = true;
    for (auto* queue : {&sends_, &receives_}) {
      std::erase_if(*queue, [&](auto& entry) {
        if (std::get<0>(entry.first) != rank && std::get<1>(entry.first) != rank) return false;
        for (auto& slot : entry.second) slot->state = Slot::State::closed;
        return true;
      });
    }
    changed_.notify_all();
    changed_.wait(lock, [&] { return copies_in_flight_ == 0; });
  }

  bool peer_exited(int rank) {
    const std::lock_guard lock(mutex_);
    return disconnected_[static_cast<std::size_t>(rank)];
  }

  // The first member to come makes the group, the last one to come takes it off the list.
  std::shared_ptr<ThreadHub> split(const std::string& name, int size) {
    const std::lock_guard lock(mutex_);
    auto [entry, created] = pending_splits_.try_emplace(name);
    if (created) entry->second.thread_hub = std::make_shared<ThreadHub>(size);
    auto thread_hub = entry->second.thread_hub;
    if (++entry->second.joined == size) pending_splits_.erase(entry);
    return thread_hub;
  }

  void publish(int rank, const std::string& text) override {
    const std::lock_guard lock(mutex_);
    failure_reports_[static_cast<std::size_t>(rank)] = text;
  }
  std::vector<std::optional<std::string>> read() override {
    const std::lock_guard lock(mutex_);
    return failure_reports_;
  }

 private:
  using Key = std::tuple<int, int, std::uint64_t, Phase, std::size_t>;
  using Queue = std::map<Key, std::deque<std::shared_ptr<Slot>>>;
  struct PendingSplit {
    std::shared_ptr<ThreadHub> thread_hub;
    int joined = 0;
  };

  std::shared_ptr<Slot> match(Queue& own_queue, Queue& peer_queue, int from, int to, Tag tag, const Buffer& buffer,
                              bool sending) {
    auto slot = std::make_shared<Slot>();
    slot->buffer = buffer;
    const Key key(from, to, tag.operation, tag.phase, buffer.size);
    std::unique_lock lock(mutex_);
    if (disconnected_[static_cast<std::size_t>(from)] || disconnected_[static_cast<std::size_t>(to)]) {
      slot->state = Slot::State::closed;
      return slot;
    }
    const auto found = peer_queue.find(key);
    if (found == peer_queue.end()) {
      own_queue[key].push_back(slot);
      return slot;
    }
    const auto peer_slot = found->second.front();
    found->second.pop_front();
    if (found->second.empty()) peer_queue.erase(found);

    slot->state = peer_slot->state = Slot::State::copying;
    ++copies_in_flight_;
    lock.unlock();
    const Buffer& source = sending ? slot->buffer : peer_slot->buffer;
    const Buffer& target = sending ? peer_slot->buffer : slot->buffer;
    std::memcpy(target.data, source.data, source.size);
    lock.lock();
    --copies_in_flight_;
    slot->state = peer_slot->state = Slot::State::done;
    changed_.notify_all();
    return slot;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Queue sends_;
  Queue receives_;
  std::vector<bool> disconnected_;
  int copies_in_flight_ = 0;
  std::vector<std::optional<std::string>> failure_reports_;
  std::map<std::string, PendingSplit> pending_splits_;
};

class ThreadTransfer final : public Transfer {
 public:
  ThreadTransfer(std::shared_ptr<ThreadHub> thread_hub, std::shared_ptr<Slot> slot, int peer)
      : hub_(std::move(thread_hub)), slot_(std::move(slot)), peer_(peer) {}

  int peer() const override { return peer_; }
  void wait(Deadline deadline) override { hub_->wait(*slot_, peer_, deadline); }

 private:
  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<Slot> slot_;
  int peer_;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadHub> thread_hub, int rank)
      : Transport("threads", rank, thread_hub->size()), hub_(std::move(thread_hub)) {}
  ~ThreadTransport() override { close(); }

  std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Buffer& buffer) override {
    return std::make_unique<ThreadTransfer>(hub_, hub_->send(rank(), peer, tag, buffer), peer);
  }
  std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Buffer& buffer) override {
    return std::make_unique<ThreadTransfer>(hub_, hub_->receive(peer, rank(), tag, buffer), peer);
  }

  std::shared_ptr<Transport> split(const std::vector<int>& members, const std::string& name,
                                   std::chrono::milliseconds) override {
    const auto size = static_cast<int>(members.size());
    const auto rank = static_cast<int>(std::ranges::find(members, this->rank()) - members.begin());
    return std::make_shared<ThreadTransport>(hub_->split(name, size), rank);
  }

  std::shared_ptr<FailureBoard> failure_board() override { return hub_; }
  bool peer_exited(int rank) const override { return hub_->peer_exited(rank); }
  void close() noexcept override { hub_->disconnect(rank()); }

 private:
  std::shared_ptr<ThreadHub> hub_;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> make_thread_transports(int size) {
  auto thread_hub = std::make_shared<ThreadHub>(size);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) transports.push_back(std::make_shared<ThreadTransport>(thread_hub, rank));
  return transports;
}

}  // namespace tutti::comm
