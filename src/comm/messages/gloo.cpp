// The only file that sees Gloo's headers. They are an older release than the Gloo inside LibTorch: no Gloo object is
// constructed here and no Gloo type subclassed; all goes through c10d.
#include "comm/messages/gloo.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "comm/engine/describe.h"
#include "comm/meeting/without_sigpipe.h"
#include "comm/messages/first_words.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr std::uint64_t connecting = ~std::uint64_t{0};
constexpr std::uint64_t closing = connecting - 1;

// c10d's tags are 31 bits: 16 of the operation's number, 3 of the phase, 12 of a hash of the length.
int wire_tag(Tag tag, std::size_t length) {
  const auto number = static_cast<std::uint32_t>(tag.operation & 0xffff);
  const auto phase = static_cast<std::uint32_t>(tag.phase);
  const auto hash = static_cast<std::uint32_t>((std::uint64_t{length} * 0x9e3779b97f4a7c15U) >> 52);
  return static_cast<int>(number << 15 | phase << 12 | hash);
}

using GlooWork = c10::intrusive_ptr<c10d::Work>;
using GlooOptions = c10::intrusive_ptr<c10d::ProcessGroupGloo::Options>;

// What the transfers of one group share.
class Group {
 public:
  Group(c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group, GroupPulse pulse)
      : process_group_(std::move(process_group)), pulse_(std::move(pulse)) {}

  // c10d counts calls without a lock.
  GlooWork post(bool send, int peer, int tag, at::Tensor bytes) {
    const WithoutSigpipe guard;
    const std::lock_guard lock(mutex_);
    std::vector<at::Tensor> tensors{std::move(bytes)};
    return send ? process_group_->send(tensors, peer, tag) : process_group_->recv(tensors, peer, tag);
  }

  // When one wait times out Gloo closes all connections, which ends the waits of other threads too: these must not
  // blame the peer that they happen to wait for.
  void note_timeout(int peer) {
    const std::lock_guard lock(mutex_);
    late_.push_back(peer);
    noted_.notify_all();
  }
  std::vector<int> late_peers() {
    std::unique_lock lock(mutex_);
    noted_.wait_for(lock, std::chrono::seconds(1), [&] { return !late_.empty(); });
    return late_;
  }

  // Waits for `work`, whatever its deadline no longer than the machines of all members give signs of life.
  void wait(const GlooWork& work, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const auto place = awaited_.insert(awaited_.end(), work);
    lock.unlock();
    const auto forget = c10::make_scope_exit([&] {
      const std::lock_guard lock_again(mutex_);
      awaited_.erase(place);
    });
    pulse_.throw_if_silent();
    try {
      if (work->wait(timeout)) return;
    } catch (const std::exception&) {
      pulse_.throw_if_silent();
      throw;
    }
    pulse_.throw_if_silent();
    throw std::runtime_error("the wait was given up");
  }

  void end_waits_for(const std::vector<int>& silent) {
    if (!pulse_.concerns(silent)) return;
    const std::lock_guard lock(mutex_);
    for (const GlooWork& work : awaited_) work->abort();
  }

  // Its memory may still be written to: kept until the connections are closed.
  void bury(GlooWork work) {
    const std::lock_guard lock(mutex_);
    buried_.push_back(std::move(work));
  }
  bool has_buried() {
    const std::lock_guard lock(mutex_);
    return !buried_.empty();
  }

  // A receive that times out is the one way to make Gloo close its connections.
  void close(int rank, int size) noexcept {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      try {
        post(false, peer, wire_tag({closing, Phase::exchange}, 1), at::empty({1}, at::kByte))
            ->wait(std::chrono::milliseconds(1));
      } catch (const std::exception&) {
        // This is how it ends, and how it begins where the connection is closed already.
      }
    }
    const std::lock_guard lock(mutex_);
    buried_.clear();
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group_;
  GroupPulse pulse_;
  std::mutex mutex_;
  std::condition_variable noted_;
  std::vector<int> late_;
  std::list<GlooWork> awaited_;
  std::vector<GlooWork> buried_;
};

class GlooTransfer final : public Transfer {
 public:
  GlooTransfer(std::shared_ptr<Group> group, GlooWork work, int peer)
      : group_(std::move(group)), work_(std::move(work)), peer_(peer) {}
  ~GlooTransfer() override {
    if (work_) group_->bury(std::move(work_));
  }

  int peer() const override { return peer_; }

  void wait(Deadline deadline) override {
    using std::chrono::milliseconds;
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    try {
      group_->wait(work_, std::max(left, milliseconds(1)));
      work_.reset();
    } catch (const TransferError&) {
      throw;
    } catch (const std::exception& error) {
      const std::string cause = error.what();
      if (cause.find("Application timeout") != std::string::npos && Clock::now() < deadline) {
        throw TransferError(TransferError::Kind::timeout, group_->late_peers(), cause);
      }
      if (Clock::now() < deadline) throw TransferError(TransferError::Kind::closed, {peer_}, cause);
      group_->note_timeout(peer_);
      throw TransferError(TransferError::Kind::timeout, {peer_}, cause);
    }
  }

 private:
  std::shared_ptr<Group> group_;
  GlooWork work_;
  int peer_;
};

std::unique_ptr<Transfer> post(const std::shared_ptr<Group>& group, bool send, int peer, Tag tag, const Block& block) {
  auto bytes = at::from_blob(
      block.data, {static_cast<std::int64_t>(block.size)}, [owner = block.owner](void*) {}, at::kByte);
  try {
    auto work = group->post(send, peer, wire_tag(tag, block.size), std::move(bytes));
    return std::make_unique<GlooTransfer>(group, std::move(work), peer);
  } catch (const std::exception& error) {
    throw TransferError(TransferError::Kind::closed, {peer}, error.what());
  }
}

// Gloo connects in the background. First words from everyone to everyone: after them no start of an operation has to
// wait, and whoever has taken a rank's place is found out.
void try_connections(const std::shared_ptr<Group>& group, const FirstWords& words, int rank, int size,
                     std::chrono::milliseconds timeout) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(2 * static_cast<std::size_t>(size) * words.size());
  const Block all{bytes->data(), bytes->size(), bytes};
  const Tag tag{connecting, Phase::exchange};
  Transfers transfers;
  const auto each_peer = [&](const auto& visit) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) visit(peer);
    }
  };
  const auto place = [&](int number) {
    return all.part(static_cast<std::size_t>(number) * words.size(), words.size());
  };
  each_peer([&](int peer) { transfers.push_back(post(group, false, peer, tag, place(peer))); });
  each_peer([&](int peer) {
    const auto own = place(size + peer);
    std::ranges::copy(words.to(peer), own.data);
    transfers.push_back(post(group, true, peer, tag, own));
  });
  wait_all(transfers, Clock::now() + timeout);
  each_peer([&](int peer) {
    if (words.are_from(peer, std::span(place(peer).data, words.size()))) return;
    throw PeerFailure(
        "Connecting over Gloo: whoever answers as rank " + std::to_string(peer) + " does not know the job's secret.",
        {peer});
  });
}

// Where this process listens, for all its groups: one socket, and one thread that looks after their connections.
class Endpoint {
 public:
  explicit Endpoint(GlooPlace place) : place_(std::move(place)) {}

  std::string describe() const { return place_.interface.empty() ? place_.address : "interface " + place_.interface; }

  /// Listens from now on. Throws where it cannot.
  GlooOptions options(std::chrono::milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    if (devices_.empty()) {
      devices_.push_back(place_.interface.empty()
                             ? c10d::ProcessGroupGloo::createDeviceForHostname(place_.address, connect_when_needed)
                             : c10d::ProcessGroupGloo::createDeviceForInterface(place_.interface, connect_when_needed));
    }
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices = devices_;
    options->threads = 1;  // they run collectives, which nobody asks of it
    return options;
  }

 private:
  static constexpr bool connect_when_needed = false;

  GlooPlace place_;
  std::mutex mutex_;
  decltype(c10d::ProcessGroupGloo::Options::devices) devices_;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(Rendezvous rendezvous, std::shared_ptr<Endpoint> endpoint, int rank, GroupPulse pulse,
                std::chrono::milliseconds timeout)
      : rendezvous_(std::move(rendezvous)),
        endpoint_(std::move(endpoint)),
        rank_(rank),
        size_(static_cast<int>(pulse.job_ranks().size())),
        pulse_(std::move(pulse)),
        timeout_(timeout) {}
  ~GlooTransport() override {
    if (group_ && group_->has_buried()) close();
  }

  const std::string& name() const override {
    static const std::string name = "gloo";
    return name;
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Block& block) override {
    return post(group_for(peer), true, peer, tag, block);
  }
  std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Block& block) override {
    return post(group_for(peer), false, peer, tag, block);
  }

  std::shared_ptr<Transport> connect_again(const std::vector<int>& members, const std::string& name,
                                           std::chrono::milliseconds timeout) override {
    const auto rank = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
    return std::make_shared<GlooTransport>(rendezvous_of_group(rendezvous_, name, members), endpoint_, rank,
                                           pulse_.of(members), timeout);
  }

  void connect() override {
    const std::lock_guard lock(connecting_);
    if (group()) return;
    try {
      FirstWords words(rendezvous_.secret, rank_);
      auto options = options_of_all(words);
      auto connected = connected_group(std::move(options), words);
      if (const auto& pulse = pulse_.pulse()) {
        alarm_ = pulse->when_silent([of = std::weak_ptr(connected)](const std::vector<int>& silent) {
          if (const auto still = of.lock()) still->end_waits_for(silent);
        });
      }
      const std::lock_guard group_lock(mutex_);
      group_ = std::move(connected);
    } catch (const PeerFailure&) {
      throw;
    } catch (const UsageError&) {
      throw;
    } catch (const TransferError& error) {
      throw PeerFailure(
          "Connecting over Gloo: no answer from " + describe_ranks(error.peers()) + " (" + error.what() + ")",
          error.peers());
    } catch (const std::exception& error) {
      throw PeerFailure(std::string("Connecting over Gloo failed: ") + error.what(), {});
    }
    if (closed_) close();
  }

  // At the store, where all ranks of the group can be told apart before any is connected.
  std::optional<std::vector<std::byte>> meet(std::span<const std::byte> mine,
                                             std::chrono::milliseconds timeout) override {
    const std::string value(reinterpret_cast<const char*>(mine.data()), mine.size());
    const auto values = exchange(rendezvous_, "meet/" + std::to_string(meetings_++), rank_, size_, value, timeout);
    std::vector<std::byte> all;
    for (const std::string& other : values) {
      if (other.size() != mine.size()) throw PeerFailure("A rank of another program came to the store.", {});
      const auto* const bytes = reinterpret_cast<const std::byte*>(other.data());
      all.insert(all.end(), bytes, bytes + other.size());
    }
    return all;
  }

  std::shared_ptr<Bulletin> bulletin() override { return make_store_bulletin(rendezvous_, size_); }
  void close() noexcept override {
    closed_ = true;  // whoever is just connecting sees it afterwards
    if (const auto connected = group()) connected->close(rank_, size_);
  }

 private:
  std::shared_ptr<Group> group() const {
    const std::lock_guard lock(mutex_);
    return group_;
  }

  std::shared_ptr<Group> group_for(int peer) {
    if (auto connected = group()) return connected;
    if (closed_) throw TransferError(TransferError::Kind::closed, {peer}, "the channel was given up");
    try {
      connect();
    } catch (const Timeout& failure) {
      throw TransferError(TransferError::Kind::timeout, failure.ranks(), failure.what(), timeout_);
    } catch (const PeerFailure& failure) {
      throw TransferError(TransferError::Kind::closed, failure.ranks(), failure.what());
    }
    return group();
  }

  // A rank that cannot listen says so here, and those that do not come are named: Gloo would wait for either.
  GlooOptions options_of_all(FirstWords& words) {
    const WithoutSigpipe guard;  // also for the thread that Gloo starts here
    GlooOptions options;
    std::string trouble;
    try {
      options = endpoint_->options(timeout_);
    } catch (const std::exception& error) {
      trouble = "listening on " + endpoint_->describe() + " failed: " + error.what();
    }
    const auto said = exchange(rendezvous_, "connecting/" + std::to_string(attempts_++), rank_, size_,
                               words.with_challenge(trouble), timeout_, [this] { return closed_.load(); });
    const auto troubles = words.without_challenges(said);
    const auto first = std::ranges::find_if(troubles, [](const std::string& text) { return !text.empty(); });
    if (first == troubles.end()) return options;
    const auto who = static_cast<int>(first - troubles.begin());
    throw PeerFailure("Connecting over Gloo: on rank " + std::to_string(who) + " " + *first, {who});
  }

  std::shared_ptr<Group> connected_group(GlooOptions options, const FirstWords& words) const {
    const WithoutSigpipe guard;
    auto connected = std::make_shared<Group>(
        c10::make_intrusive<c10d::ProcessGroupGloo>(rendezvous_.store, rank_, size_, std::move(options)), pulse_);
    try_connections(connected, words, rank_, size_, timeout_);
    return connected;
  }

  Rendezvous rendezvous_;
  std::shared_ptr<Endpoint> endpoint_;
  int rank_;
  int size_;
  GroupPulse pulse_;
  std::chrono::milliseconds timeout_;  // for connecting
  std::atomic<int> meetings_ = 0;
  int attempts_ = 0;  // to connect
  std::atomic<bool> closed_ = false;
  std::mutex connecting_;
  mutable std::mutex mutex_;
  std::shared_ptr<Group> group_;  // null until it is connected
  std::shared_ptr<void> alarm_;
};

}  // namespace

std::shared_ptr<Transport> make_gloo_transport(const Rendezvous& rendezvous, const GlooPlace& place, int rank,
                                               GroupPulse pulse, std::chrono::milliseconds timeout) {
  return std::make_shared<GlooTransport>(rendezvous, std::make_shared<Endpoint>(place), rank, std::move(pulse),
                                         timeout);
}

}  // namespace tutti::comm
