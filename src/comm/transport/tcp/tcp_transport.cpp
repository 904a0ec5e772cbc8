#include "comm/transport/tcp/tcp_transport.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "comm/algorithms/peers.h"
#include "comm/backend/describe.h"
#include "comm/transport/tcp/tcp_channel.h"
#include "core/hash.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

class TcpTransport final : public Transport {
 public:
  TcpTransport(std::shared_ptr<Endpoint> endpoint, Rendezvous rendezvous, const std::string& group, int rank,
               GroupHealth health, std::chrono::milliseconds timeout)
      : Transport(endpoint->encrypts() ? "encrypted tcp" : "tcp", rank, static_cast<int>(health.global_ranks().size())),
        endpoint_(std::move(endpoint)),
        rendezvous_(std::move(rendezvous)),
        group_(group),
        health_(std::move(health)),
        timeout_(timeout) {}

  std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Buffer& buffer) override {
    return channel_for(peer)->post(true, peer, tag, buffer);
  }
  std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Buffer& buffer) override {
    return channel_for(peer)->post(false, peer, tag, buffer);
  }

  std::shared_ptr<Transport> split(const std::vector<int>& members, const std::string& name,
                                   std::chrono::milliseconds timeout) override {
    const auto rank = static_cast<int>(std::ranges::find(members, this->rank()) - members.begin());
    return std::make_shared<TcpTransport>(endpoint_, rendezvous_of_group(rendezvous_, name, members),
                                          group_ + "/" + name, rank, health_.for_group(members), timeout);
  }

  void connect() override {
    const std::lock_guard lock(connect_mutex_);
    if (channel()) return;
    try {
      require_all_open();
      connect_to_first_peers();
    } catch (const TransferError& error) {
      const auto ranks = health_.members_among(error.peers());  // the event loop names global ranks
      throw PeerError("Connecting over TCP: " + describe_ranks(ranks) + ": " + error.what() + ".", ranks);
    }
    auto channel = std::make_shared<TcpChannel>(endpoint_, fnv1a("collectives: " + group_), health_, global_rank(rank()));
    {
      const std::lock_guard channel_lock(mutex_);
      channel_ = std::move(channel);
    }
    if (closed_) close();
  }

  // At the coordinator, where all ranks of the group can be told apart before any is connected.
  std::optional<std::vector<std::byte>> bootstrap_all_gather(std::span<const std::byte> input,
                                                             std::chrono::milliseconds timeout) override {
    const std::string value(reinterpret_cast<const char*>(input.data()), input.size());
    const auto values =
        coordinator_all_gather(rendezvous_, "bootstrap/" + std::to_string(bootstrap_calls_++), rank(), value, timeout);
    std::vector<std::byte> all;
    for (const std::string& one : values) {
      if (one.size() != input.size()) {
        throw PeerError("Unexpected data at the coordinator: another program uses the same one.", {});
      }
      const auto* const bytes = reinterpret_cast<const std::byte*>(one.data());
      all.insert(all.end(), bytes, bytes + one.size());
    }
    return all;
  }

  void throw_if_peers_failed() const override { health_.throw_if_peers_failed(); }
  std::shared_ptr<FailureBoard> failure_board() override { return make_coordinator_failure_board(rendezvous_); }
  void close() noexcept override {
    closed_ = true;  // a thread in connect() checks it afterwards
    if (const auto connected = channel()) connected->close();
  }

 private:
  std::shared_ptr<TcpChannel> channel() const {
    const std::lock_guard lock(mutex_);
    return channel_;
  }
  std::shared_ptr<TcpChannel> channel_for(int peer) {
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
  // Names the ranks that cannot listen, and those that do not join.
  void require_all_open() {
    std::string own_problem;
    try {
      endpoint_->open();
    } catch (const std::exception& error) {
      own_problem = first_line(error.what());
    }
    const auto problems = coordinator_all_gather(rendezvous_, "connecting/" + std::to_string(connect_attempts_++), rank(),
                                                 own_problem, timeout_, [this] { return closed_.load(); });
    for (int member = 0; member < size(); ++member) {
      const auto& problem = problems[static_cast<std::size_t>(member)];
      if (!problem.empty())
        throw PeerError("Connecting over TCP: on rank " + std::to_string(member) + " " + problem, {member});
    }
  }
  // The ranks that this rank exchanges messages with in every round, so that no round has to connect.
  void connect_to_first_peers() {
    std::vector<int> peers = peers_of(rank(), size());
    for (int& peer : peers) peer = global_rank(peer);
    endpoint_->open().connect(peers, Clock::now() + timeout_);
  }
  int global_rank(int member) const { return health_.global_ranks().at(static_cast<std::size_t>(member)); }

  const std::shared_ptr<Endpoint> endpoint_;
  const Rendezvous rendezvous_;
  const std::string group_;
  const GroupHealth health_;
  const std::chrono::milliseconds timeout_;  // for connecting
  std::atomic<int> bootstrap_calls_ = 0;
  int connect_attempts_ = 0;
  std::atomic<bool> closed_ = false;
  std::mutex connect_mutex_;
  mutable std::mutex mutex_;
  std::shared_ptr<TcpChannel> channel_;  // null until it is connected
};

}  // namespace

std::shared_ptr<Transport> make_tcp_transport(const Rendezvous& rendezvous, std::shared_ptr<Endpoint> endpoint,
                                              int rank, GroupHealth health, std::chrono::milliseconds timeout) {
  return std::make_shared<TcpTransport>(std::move(endpoint), rendezvous, "job", rank, std::move(health), timeout);
}

}  // namespace tutti::comm
