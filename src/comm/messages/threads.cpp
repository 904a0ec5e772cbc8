#include "comm/messages/threads.h"

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
  Block block;
  State state = State::waiting;
};

class Hub {
 public:
  explicit Hub(int size) : size_(size), gone_(static_cast<std::size_t>(size)), posts_(gone_.size()) {}

  int size() const { return size_; }

  std::shared_ptr<Slot> send(int from, int to, Tag tag, const Block& block) {
    return meet(sends_, receives_, from, to, tag, block, true);
  }
  std::shared_ptr<Slot> receive(int from, int to, Tag tag, const Block& block) {
    return meet(receives_, sends_, from, to, tag, block, false);
  }

  void wait(const Slot& slot, int peer, Deadline deadline) {
    std::unique_lock lock(mutex_);
    // A copy that has begun is always awaited: it ends soon, and its memory must not be given back before.
    const auto ended = [&] { return slot.state == Slot::State::done || slot.state == Slot::State::closed; };
    if (!changed_.wait_until(lock, deadline, ended) && slot.state != Slot::State::copying) {
      throw TransferError(TransferError::Kind::timeout, {peer}, "timed out");
    }
    changed_.wait(lock, ended);
    if (slot.state == Slot::State::closed) {
      throw TransferError(TransferError::Kind::closed, {peer}, "connection closed");
    }
  }

  void leave(int rank) {
    std::unique_lock lock(mutex_);
    gone_[static_cast<std::size_t>(rank)] = true;
    for (auto* waiting : {&sends_, &receives_}) {
      std::erase_if(*waiting, [&](auto& entry) {
        if (std::get<0>(entry.first) != rank && std::get<1>(entry.first) != rank) return false;
        for (auto& slot : entry.second) slot->state = Slot::State::closed;
        return true;
      });
    }
    changed_.notify_all();
    changed_.wait(lock, [&] { return copies_under_way_ == 0; });
  }

  bool is_gone(int rank) {
    const std::lock_guard lock(mutex_);
    return gone_[static_cast<std::size_t>(rank)];
  }

  // The first member to come makes the group, the last one to come takes it off the list.
  std::shared_ptr<Hub> child(const std::string& name, int size) {
    const std::lock_guard lock(mutex_);
    auto [entry, created] = children_.try_emplace(name);
    if (created) entry->second.hub = std::make_shared<Hub>(size);
    auto hub = entry->second.hub;
    if (++entry->second.arrived == size) children_.erase(entry);
    return hub;
  }

  void post(int rank, const std::string& text) {
    const std::lock_guard lock(mutex_);
    posts_[static_cast<std::size_t>(rank)] = text;
  }
  std::vector<std::optional<std::string>> posts() {
    const std::lock_guard lock(mutex_);
    return posts_;
  }

 private:
  using Key = std::tuple<int, int, std::uint64_t, Phase, std::size_t>;
  using Waiting = std::map<Key, std::deque<std::shared_ptr<Slot>>>;
  struct Child {
    std::shared_ptr<Hub> hub;
    int arrived = 0;
  };

  std::shared_ptr<Slot> meet(Waiting& mine, Waiting& theirs, int from, int to, Tag tag, const Block& block,
                             bool sending) {
    auto slot = std::make_shared<Slot>();
    slot->block = block;
    const Key key(from, to, tag.operation, tag.phase, block.size);
    std::unique_lock lock(mutex_);
    if (gone_[static_cast<std::size_t>(from)] || gone_[static_cast<std::size_t>(to)]) {
      slot->state = Slot::State::closed;
      return slot;
    }
    const auto found = theirs.find(key);
    if (found == theirs.end()) {
      mine[key].push_back(slot);
      return slot;
    }
    const auto other = found->second.front();
    found->second.pop_front();
    if (found->second.empty()) theirs.erase(found);

    slot->state = other->state = Slot::State::copying;
    ++copies_under_way_;
    lock.unlock();
    const Block& source = sending ? slot->block : other->block;
    const Block& target = sending ? other->block : slot->block;
    std::memcpy(target.data, source.data, source.size);
    lock.lock();
    --copies_under_way_;
    slot->state = other->state = Slot::State::done;
    changed_.notify_all();
    return slot;
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Waiting sends_;
  Waiting receives_;
  std::vector<bool> gone_;
  int copies_under_way_ = 0;
  std::vector<std::optional<std::string>> posts_;
  std::map<std::string, Child> children_;
};

class ThreadTransfer final : public Transfer {
 public:
  ThreadTransfer(std::shared_ptr<Hub> hub, std::shared_ptr<Slot> slot, int peer)
      : hub_(std::move(hub)), slot_(std::move(slot)), peer_(peer) {}

  int peer() const override { return peer_; }
  void wait(Deadline deadline) override { hub_->wait(*slot_, peer_, deadline); }

 private:
  std::shared_ptr<Hub> hub_;
  std::shared_ptr<Slot> slot_;
  int peer_;
};

class ThreadBulletin final : public Bulletin {
 public:
  explicit ThreadBulletin(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}

  void post(int rank, const std::string& text) override { hub_->post(rank, text); }
  std::vector<std::optional<std::string>> read() override { return hub_->posts(); }
  int holder() const override { return -1; }

 private:
  std::shared_ptr<Hub> hub_;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~ThreadTransport() override { close(); }

  const std::string& name() const override {
    static const std::string name = "threads";
    return name;
  }
  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }

  std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Block& block) override {
    return std::make_unique<ThreadTransfer>(hub_, hub_->send(rank_, peer, tag, block), peer);
  }
  std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Block& block) override {
    return std::make_unique<ThreadTransfer>(hub_, hub_->receive(peer, rank_, tag, block), peer);
  }

  std::shared_ptr<Transport> connect_again(const std::vector<int>& members, const std::string& name,
                                           std::chrono::milliseconds) override {
    const auto size = static_cast<int>(members.size());
    int rank = 0;
    while (members.at(static_cast<std::size_t>(rank)) != rank_) ++rank;
    return std::make_shared<ThreadTransport>(hub_->child(name, size), rank);
  }

  std::shared_ptr<Bulletin> bulletin() override { return std::make_shared<ThreadBulletin>(hub_); }
  bool is_gone(int rank) const override { return hub_->is_gone(rank); }
  void close() noexcept override { hub_->leave(rank_); }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> make_thread_transports(int size) {
  auto hub = std::make_shared<Hub>(size);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) transports.push_back(std::make_shared<ThreadTransport>(hub, rank));
  return transports;
}

}  // namespace tutti::comm
