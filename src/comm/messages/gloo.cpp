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
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "comm/engine/describe.h"
#include "comm/meeting/without_sigpipe.h"
#include "comm/messages/exchange.h"
#include "comm/messages/first_words.h"
#include "comm/messages/neighbours.h"
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

  // One call at a time: c10d counts them without a lock. In a large group the first message to a peer that is no
  // neighbour waits for it.
  GlooWork post(bool send, int peer, int tag, at::Tensor bytes) {
    const WithoutSigpipe guard;
    const std::lock_guard one_at_a_time(posting_);
    {
      const std::lock_guard lock(mutex_);
      // Gloo would connect anew, to a peer that does not expect it.
      if (closed_) throw std::runtime_error("the connections were closed");
      connected_.insert(peer);
    }
    std::vector<at::Tensor> tensors{std::move(bytes)};
    return send ? process_group_->send(tensors, peer, tag) : process_group_->recv(tensors, peer, tag);
  }

  // When one wait times out Gloo closes all connections, which ends the waits of other threads too: these must not
  // blame the peer that they happen to wait for.
  void note_timeout(int peer) {
    const std::lock_guard lock(mutex_);
    closed_ = true;
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
      pulse_.hurry();
      throw;
    }
    pulse_.throw_if_silent();
    throw std::runtime_error("the wait was given up");
  }

  void end_waits_for(const GivenUp& given_up) {
    if (!pulse_.concerns(given_up)) return;
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

  // A receive that times out is the one way to make Gloo close its connections: all of them at once.
  void close() noexcept {
    const WithoutSigpipe guard;
    const std::scoped_lock lock(posting_, mutex_);
    for (auto peer = connected_.begin(); !closed_ && peer != connected_.end(); ++peer) {
      GlooWork never;
      try {
        std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
        never = process_group_->recv(nothing, *peer, wire_tag({closing, Phase::exchange}, 1));
        never->wait(std::chrono::milliseconds(1));
      } catch (const std::exception& error) {
        // Where this peer's connection was closed already, the next one is asked.
        closed_ = std::string_view(error.what()).find("Timed out") != std::string_view::npos;
      }
    }
    closed_ = true;
    buried_.clear();
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group_;
  GroupPulse pulse_;
  std::mutex posting_;
  std::mutex mutex_;
  std::condition_variable noted_;
  std::set<int> connected_;
  bool closed_ = false;
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

// Whom a rank connects to before its first message: whom it will talk to in every round, or, where ranks prove
// something to one another, everyone.
std::vector<int> first_peers(const FirstWords& words, int rank, int size) {
  if (!words.are_a_proof()) return neighbours_of(rank, size);
  std::vector<int> others;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) others.push_back(peer);
  }
  return others;
}

// Gloo connects in the background, or with the first message. First words to and from those peers: after them no start
// of a round has to wait, and whoever has taken a rank's place is found out.
void try_connections(const std::shared_ptr<Group>& group, const FirstWords& words, int rank, int size,
                     std::chrono::milliseconds timeout) {
  const auto peers = first_peers(words, rank, size);
  const auto bytes = std::make_shared<std::vector<std::byte>>(2 * peers.size() * words.size());
  const Block all{bytes->data(), bytes->size(), bytes};
  const Tag tag{connecting, Phase::exchange};
  Transfers transfers;
  const auto place = [&](std::size_t number) { return all.part(number * words.size(), words.size()); };
  for (std::size_t i = 0; i < peers.size(); ++i) transfers.push_back(post(group, false, peers[i], tag, place(i)));
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const auto own = place(peers.size() + i);
    std::ranges::copy(words.to(peers[i]), own.data);
    transfers.push_back(post(group, true, peers[i], tag, own));
  }
  wait_all(transfers, Clock::now() + timeout);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (words.are_from(peers[i], std::span(place(i).data, words.size()))) continue;
    throw PeerFailure("Connecting over Gloo: whoever answers as rank " + std::to_string(peers[i]) +
                          " does not know the job's secret.",
                      {peers[i]});
  }
}

using GlooDevices = decltype(c10d::ProcessGroupGloo::Options::devices);

// Where this process listens.
class Endpoint {
 public:
  explicit Endpoint(GlooPlace place) : place_(std::move(place)) {}

  std::string describe() const { return place_.interface.empty() ? place_.address : "interface " + place_.interface; }

  /// Of a group that connects at once, or where two ranks have something to tell. Listens from now on. Throws where it
  /// cannot.
  GlooOptions options(bool connect_at_once, std::chrono::milliseconds timeout) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices = devices_for(connect_at_once);
    options->threads = 1;  // they run collectives, which nobody asks of it
    return options;
  }

 private:
  // One socket, and one thread that looks after its connections, for all groups that connect at once. The others need
  // one each: Gloo can connect later for one group of a device only.
  GlooDevices devices_for(bool connect_at_once) {
    if (!connect_at_once) return {make_device(true)};
    const std::lock_guard lock(mutex_);
    if (devices_.empty()) devices_.push_back(make_device(false));
    return devices_;
  }
  GlooDevices::value_type make_device(bool connect_when_needed) const {
    return place_.interface.empty()
               ? c10d::ProcessGroupGloo::createDeviceForHostname(place_.address, connect_when_needed)
               : c10d::ProcessGroupGloo::createDeviceForInterface(place_.interface, connect_when_needed);
  }

  GlooPlace place_;
  std::mutex mutex_;
  GlooDevices devices_;
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
        alarm_ = pulse->when_given_up([of = std::weak_ptr(connected)](const GivenUp& given_up) {
          if (const auto still = of.lock()) still->end_waits_for(given_up);
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

  std::shared_ptr<Bulletin> bulletin() override {
    return make_store_bulletin(rendezvous_, size_,
                               {.ended = [pulse = pulse_] { return pulse.ended(); },
                                .store_answers = [pulse = pulse_] { return pulse.store_answers(); }});
  }
  void close() noexcept override {
    closed_ = true;  // whoever is just connecting sees it afterwards
    if (const auto connected = group()) connected->close();
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
      const bool at_once = size_ <= most_ranks_told_directly || words.are_a_proof();
      options = endpoint_->options(at_once, timeout_);
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
