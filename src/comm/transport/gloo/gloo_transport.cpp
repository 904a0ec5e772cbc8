#include "comm/transport/gloo/gloo_transport.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include "comm/algorithms/peers.h"
#include "comm/backend/describe.h"
#include "comm/transport/gloo/connection_mux.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// What a rank that cannot take part says instead of its introduction.
constexpr char error_marker = '!';

class GlooTransport final : public Transport {
 public:
  GlooTransport(std::shared_ptr<ConnectionMux> mux, Rendezvous rendezvous, int rank, GroupHealth health,
                std::chrono::milliseconds timeout)
      : Transport("gloo", rank, static_cast<int>(health.global_ranks().size())),
        mux_(std::move(mux)),
        rendezvous_(std::move(rendezvous)),
        health_(std::move(health)),
        timeout_(timeout) {}

  std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Buffer& block) override {
    return channel_for(peer)->post(true, peer, tag, block);
  }
  std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Buffer& block) override {
    return channel_for(peer)->post(false, peer, tag, block);
  }

  std::shared_ptr<Transport> split(const std::vector<int>& members, const std::string& name,
                                   std::chrono::milliseconds timeout) override {
    const auto rank = static_cast<int>(std::ranges::find(members, this->rank()) - members.begin());
    return std::make_shared<GlooTransport>(mux_, rendezvous_of_group(rendezvous_, name, members), rank,
                                           health_.for_group(members), timeout);
  }

  void connect() override {
    const std::lock_guard lock(connect_mutex_);
    if (channel()) return;
    try {
      auto channel = open_and_exchange_addresses();
      mux_->connect(eager_peers(), Clock::now() + timeout_);
      const std::lock_guard channel_lock(mutex_);
      channel_ = std::move(channel);
    } catch (const PeerError&) {
      throw;
    } catch (const UsageError&) {
      throw;
    } catch (const TransferError& error) {
      const auto ranks = health_.members_among(error.peers());  // the multiplexer names global ranks
      throw PeerError("Connecting over Gloo: " + describe_ranks(ranks) + ": " + first_line(error.what()) + ".", ranks);
    } catch (const std::exception& error) {
      throw PeerError("Connecting over Gloo failed: " + first_line(error.what()), {});
    }
    if (closed_) close();
  }

  // At the store, where all ranks of the group can be told apart before any is connected.
  std::optional<std::vector<std::byte>> bootstrap_all_gather(std::span<const std::byte> own_value,
                                                             std::chrono::milliseconds timeout) override {
    const std::string value(reinterpret_cast<const char*>(own_value.data()), own_value.size());
    const auto values = store_all_gather(rendezvous_, "bootstrap/" + std::to_string(bootstrap_calls_++), rank(), size(),
                                         value, timeout);
    std::vector<std::byte> all;
    for (const std::string& other : values) {
      if (other.size() != own_value.size()) {
        throw PeerError("Unexpected data in the store: another program uses the same store.", {});
      }
      const auto* const bytes = reinterpret_cast<const std::byte*>(other.data());
      all.insert(all.end(), bytes, bytes + other.size());
    }
    return all;
  }

  void throw_if_heartbeat_lost() const override { health_.throw_if_heartbeat_lost(); }
  std::shared_ptr<FailureBoard> failure_board() override {
    return make_store_failure_board(rendezvous_, size(),
                                    {.exited_ranks = [health = health_] { return health.exited_ranks(); },
                                     .is_store_reachable = [health = health_] { return health.is_store_reachable(); }});
  }
  void close() noexcept override {
    closed_ = true;  // a thread in connect() checks it afterwards
    if (const auto connected = channel()) connected->close();
  }

 private:
  std::shared_ptr<MuxChannel> channel() const {
    const std::lock_guard lock(mutex_);
    return channel_;
  }

  std::shared_ptr<MuxChannel> channel_for(int peer) {
    if (auto connected = channel()) return connected;
    if (closed_) throw TransferError(TransferError::Kind::connection_closed, {peer}, "the communicator was closed");
    try {
      connect();
    } catch (const TimeoutError& failure) {
      throw TransferError(TransferError::Kind::timeout, failure.ranks(), failure.what(), timeout_);
    } catch (const PeerError& failure) {
      throw TransferError(TransferError::Kind::connection_closed, failure.ranks(), failure.what());
    }
    return channel();
  }

  // A rank that cannot listen reports that here, and ranks that do not join are named. Gloo would wait for both.
  std::shared_ptr<MuxChannel> open_and_exchange_addresses() {
    std::shared_ptr<MuxChannel> channel;
    std::string own_value;
    try {
      channel = mux_->open_channel();
      own_value = channel->local_address();
    } catch (const std::exception& error) {
      own_value = error_marker + first_line(error.what());
    }
    const auto gathered =
        store_all_gather(rendezvous_, "connecting/" + std::to_string(connect_attempts_++), rank(), size(),
                         mux_->attach_challenge(own_value), timeout_, [this] { return closed_.load(); });
    const auto addresses = mux_->detach_challenges(gathered, health_.global_ranks());
    for (int rank = 0; rank < size(); ++rank) {
      const auto& text = addresses.at(static_cast<std::size_t>(rank));
      if (!text.starts_with(error_marker)) continue;
      throw PeerError("Connecting over Gloo: on rank " + std::to_string(rank) + " " + text.substr(1), {rank});
    }
    channel->set_peers(health_, addresses);
    return channel;
  }

  // By their ranks in the job: whom this rank will talk to in every round, so that no start of one has to wait, or,
  // where ranks prove something to one another, everyone.
  std::vector<int> eager_peers() const {
    std::vector<int> members = peers_of(rank(), size());
    if (mux_->requires_authentication()) {
      members.resize(static_cast<std::size_t>(size()));
      std::iota(members.begin(), members.end(), 0);
      std::erase(members, this->rank());
    }
    for (int& member : members) member = health_.global_ranks().at(static_cast<std::size_t>(member));
    return members;
  }

  std::shared_ptr<ConnectionMux> mux_;
  Rendezvous rendezvous_;
  GroupHealth health_;
  std::chrono::milliseconds timeout_;  // for connecting
  std::atomic<int> bootstrap_calls_ = 0;
  int connect_attempts_ = 0;  // to connect
  std::atomic<bool> closed_ = false;
  std::mutex connect_mutex_;
  mutable std::mutex mutex_;
  std::shared_ptr<MuxChannel> channel_;  // null until it is connected
};

}  // namespace

std::shared_ptr<Transport> make_gloo_transport(const Rendezvous& rendezvous, const BindAddress& bind_address, int rank,
                                               GroupHealth health, std::chrono::milliseconds timeout) {
  const auto& all_ranks = health.global_ranks();
  const auto size = static_cast<int>(all_ranks.size());
  const auto connect = [gloo_rendezvous = rendezvous_of_group(rendezvous, "gloo", all_ranks), bind_address, rank, size,
                        timeout] {
    try {
      return make_gloo_connections(gloo_rendezvous, bind_address, rank, size, timeout);
    } catch (const std::exception& error) {
      throw Error("listening on " + bind_address.describe() + " failed: " + first_line(error.what()));
    }
  };
  auto mux = std::make_shared<ConnectionMux>(connect, rank, size, rendezvous.secret, health.monitor());
  return std::make_shared<GlooTransport>(std::move(mux), rendezvous, rank, std::move(health), timeout);
}

}  // namespace tutti::comm
