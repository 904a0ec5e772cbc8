#include "comm/mesh/transport.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include "comm/engine/describe.h"
#include "comm/mesh/mesh.h"
#include "comm/messages/neighbours.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// What a rank that cannot take part says instead of its introduction.
constexpr char trouble_mark = '!';

class MeshTransport final : public Transport {
 public:
  MeshTransport(std::shared_ptr<Mesh> mesh, Rendezvous rendezvous, int rank, GroupPulse pulse,
                std::chrono::milliseconds timeout)
      : mesh_(std::move(mesh)),
        rendezvous_(std::move(rendezvous)),
        rank_(rank),
        size_(static_cast<int>(pulse.job_ranks().size())),
        pulse_(std::move(pulse)),
        timeout_(timeout) {}

  const std::string& name() const override {
    static const std::string name = "gloo";
    return name;
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Block& block) override {
    return channel_for(peer)->post(true, peer, tag, block);
  }
  std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Block& block) override {
    return channel_for(peer)->post(false, peer, tag, block);
  }

  std::shared_ptr<Transport> connect_again(const std::vector<int>& members, const std::string& name,
                                           std::chrono::milliseconds timeout) override {
    const auto rank = static_cast<int>(std::ranges::find(members, rank_) - members.begin());
    return std::make_shared<MeshTransport>(mesh_, rendezvous_of_group(rendezvous_, name, members), rank,
                                           pulse_.of(members), timeout);
  }

  void connect() override {
    const std::lock_guard lock(connecting_);
    if (channel()) return;
    try {
      auto channel = introduced_channel();
      mesh_->meet(first_peers(), Clock::now() + timeout_);
      const std::lock_guard channel_lock(mutex_);
      channel_ = std::move(channel);
    } catch (const PeerFailure&) {
      throw;
    } catch (const UsageError&) {
      throw;
    } catch (const TransferError& error) {
      const auto ranks = pulse_.members_among(error.peers());  // the mesh names ranks of the job
      throw PeerFailure("Connecting over Gloo: " + describe_ranks(ranks) + ": " + error.what() + ".", ranks);
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

  void throw_if_silent() const override { pulse_.throw_if_silent(); }
  std::shared_ptr<Bulletin> bulletin() override {
    return make_store_bulletin(rendezvous_, size_,
                               {.ended = [pulse = pulse_] { return pulse.ended(); },
                                .store_answers = [pulse = pulse_] { return pulse.store_answers(); }});
  }
  void close() noexcept override {
    closed_ = true;  // whoever is just connecting sees it afterwards
    if (const auto connected = channel()) connected->close();
  }

 private:
  std::shared_ptr<MeshChannel> channel() const {
    const std::lock_guard lock(mutex_);
    return channel_;
  }

  std::shared_ptr<MeshChannel> channel_for(int peer) {
    if (auto connected = channel()) return connected;
    if (closed_) throw TransferError(TransferError::Kind::closed, {peer}, "the channel was given up");
    try {
      connect();
    } catch (const Timeout& failure) {
      throw TransferError(TransferError::Kind::timeout, failure.ranks(), failure.what(), timeout_);
    } catch (const PeerFailure& failure) {
      throw TransferError(TransferError::Kind::closed, failure.ranks(), failure.what());
    }
    return channel();
  }

  // A rank that cannot listen says so here, and those that do not come are named: Gloo would wait for either.
  std::shared_ptr<MeshChannel> introduced_channel() {
    std::shared_ptr<MeshChannel> channel;
    std::string mine;
    try {
      channel = mesh_->open();
      mine = channel->introduction();
    } catch (const std::exception& error) {
      mine = trouble_mark + std::string(error.what());
    }
    const auto said = exchange(rendezvous_, "connecting/" + std::to_string(attempts_++), rank_, size_,
                               mesh_->with_challenge(mine), timeout_, [this] { return closed_.load(); });
    const auto introductions = mesh_->without_challenges(said, pulse_.job_ranks());
    for (int rank = 0; rank < size_; ++rank) {
      const auto& text = introductions.at(static_cast<std::size_t>(rank));
      if (!text.starts_with(trouble_mark)) continue;
      throw PeerFailure("Connecting over Gloo: on rank " + std::to_string(rank) + " " + text.substr(1), {rank});
    }
    channel->introduce(pulse_, introductions);
    return channel;
  }

  // By their ranks in the job: whom this rank will talk to in every round, so that no start of one has to wait, or,
  // where ranks prove something to one another, everyone.
  std::vector<int> first_peers() const {
    std::vector<int> members = neighbours_of(rank_, size_);
    if (mesh_->asks_for_proof()) {
      members.resize(static_cast<std::size_t>(size_));
      std::iota(members.begin(), members.end(), 0);
      std::erase(members, rank_);
    }
    for (int& member : members) member = pulse_.job_ranks().at(static_cast<std::size_t>(member));
    return members;
  }

  std::shared_ptr<Mesh> mesh_;
  Rendezvous rendezvous_;
  int rank_;
  int size_;
  GroupPulse pulse_;
  std::chrono::milliseconds timeout_;  // for connecting
  std::atomic<int> meetings_ = 0;
  int attempts_ = 0;  // to connect
  std::atomic<bool> closed_ = false;
  std::mutex connecting_;
  mutable std::mutex mutex_;
  std::shared_ptr<MeshChannel> channel_;  // null until it is connected
};

}  // namespace

std::shared_ptr<Transport> make_gloo_transport(const Rendezvous& rendezvous, const GlooPlace& place, int rank,
                                               GroupPulse pulse, std::chrono::milliseconds timeout) {
  const auto& everyone = pulse.job_ranks();
  const auto size = static_cast<int>(everyone.size());
  const auto connect = [of_mesh = rendezvous_of_group(rendezvous, "mesh", everyone), place, rank, size, timeout] {
    try {
      return make_gloo_connections(of_mesh, place, rank, size, timeout);
    } catch (const std::exception& error) {
      throw Error("listening on " + place.describe() + " failed: " + error.what());
    }
  };
  auto mesh = std::make_shared<Mesh>(connect, rank, size, rendezvous.secret, pulse.pulse());
  return std::make_shared<MeshTransport>(std::move(mesh), rendezvous, rank, std::move(pulse), timeout);
}

}  // namespace tutti::comm
