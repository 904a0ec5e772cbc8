#include "comm/transport/tcp/tcp_transport.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "comm/backend/slow_operation_warning.h"
#include "comm/transport/tcp/awaited_message.h"
#include "core/hash.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

using Failure = TransferError::Kind;

constexpr unsigned tag_phase_bits = 2;

class TcpTransport final : public Transport, public std::enable_shared_from_this<TcpTransport> {
 public:
  TcpTransport(std::shared_ptr<Endpoint> endpoint, Rendezvous rendezvous, const std::string& group, int rank,
               GroupHealth health)
      : Transport(endpoint->encrypts() ? "encrypted tcp" : "tcp", rank, static_cast<int>(health.global_ranks().size())),
        endpoint_(std::move(endpoint)),
        rendezvous_(std::move(rendezvous)),
        group_(group),
        channel_(fnv1a("collectives: " + group)),
        health_(std::move(health)) {
    const auto wake_all = [this](const auto&...) {
      const std::lock_guard lock(mutex_);
      for (AwaitedMessage* const message : waiting_) message->wake();
    };
    failure_subscription_ = health_.events()->subscribe({.on_failed = wake_all, .on_lost = wake_all});
  }
  ~TcpTransport() override {
    failure_subscription_ = nullptr;
    close();
  }
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Buffer& buffer) override {
    return post(true, peer, tag, buffer);
  }
  std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Buffer& buffer) override {
    return post(false, peer, tag, buffer);
  }

  std::shared_ptr<Transport> split(const std::vector<int>& members, const std::string& name,
                                   std::chrono::milliseconds) override {
    const auto rank = static_cast<int>(std::ranges::find(members, this->rank()) - members.begin());
    return std::make_shared<TcpTransport>(endpoint_, rendezvous_of_group(rendezvous_, name, members),
                                          group_ + "/" + name, rank, health_.for_group(members));
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

  bool peer_exited(int rank) const override { return health_.has_ended(rank); }
  void throw_if_peers_failed() const override { health_.throw_if_peers_failed(); }
  std::shared_ptr<FailureBoard> failure_board() override { return make_coordinator_failure_board(rendezvous_); }
  // Ends all transfers, here and on the other ranks.
  void close() noexcept override {
    endpoint_->close_channel({channel_, bits_of(health_.global_ranks()), nullptr}, true);
  }

 private:
  class TcpTransfer;

  int global_rank(int member) const { return health_.global_ranks().at(static_cast<std::size_t>(member)); }
  std::unique_ptr<Transfer> post(bool is_send, int peer, Tag tag, const Buffer& buffer);
  void wait(AwaitedMessage& message, int peer, Deadline deadline);
  [[noreturn]] void throw_failure(const AwaitedMessage& message, const Outcome& outcome, int peer);

  const std::shared_ptr<Endpoint> endpoint_;
  const Rendezvous rendezvous_;
  const std::string group_;
  const std::uint64_t channel_;  // equal on all ranks of the group
  const GroupHealth health_;
  std::atomic<int> bootstrap_calls_ = 0;
  std::mutex mutex_;
  std::set<AwaitedMessage*> waiting_;
  std::shared_ptr<void> failure_subscription_;
};

class TcpTransport::TcpTransfer final : public Transfer {
 public:
  TcpTransfer(std::shared_ptr<TcpTransport> transport, std::shared_ptr<AwaitedMessage> message, int peer)
      : transport_(std::move(transport)), message_(std::move(message)), peer_(peer) {}
  ~TcpTransfer() override {
    if (!message_ || message_->outcome()) return;
    if (!transport_->endpoint_->loop().cancel(message_)) message_->wait_for_outcome();
  }
  int peer() const override { return peer_; }
  void wait(Deadline deadline) override {
    transport_->wait(*message_, peer_, deadline);
    message_ = nullptr;
  }

 private:
  std::shared_ptr<TcpTransport> transport_;
  std::shared_ptr<AwaitedMessage> message_;  // null once it has completed
  int peer_;
};

std::unique_ptr<Transfer> TcpTransport::post(bool is_send, int peer, Tag tag, const Buffer& buffer) {
  EventLoop& loop = endpoint_->loop();
  auto message = std::make_shared<AwaitedMessage>(loop);
  message->is_send = is_send;
  message->rank = global_rank(peer);
  message->channel = channel_;
  message->tag = tag.operation << tag_phase_bits | static_cast<std::uint64_t>(tag.phase);
  message->memory = {buffer.data, buffer.size};
  message->owner = buffer.owner;
  loop.post(message);
  return std::make_unique<TcpTransfer>(shared_from_this(), std::move(message), peer);
}

void TcpTransport::wait(AwaitedMessage& message, int peer, Deadline deadline) {
  auto outcome = message.outcome();
  if (!outcome) {
    const auto forget = c10::make_scope_exit([&] {
      const std::lock_guard lock(mutex_);
      waiting_.erase(&message);
    });
    {
      const std::lock_guard lock(mutex_);
      waiting_.insert(&message);
    }
    SlowOperationWarning slow_warning(Clock::now());
    while (!outcome) {
      const auto next_change = health_.next_change();  // before the check: none is missed between the two
      health_.throw_if_peers_failed();
      outcome = message.wait_until(std::min({deadline, slow_warning.next(), next_change}));
      const auto now = Clock::now();
      if (outcome) break;
      const bool is_late = now >= deadline;
      if (!is_late && !slow_warning.due(now)) continue;
      const auto no_connection = endpoint_->loop().why_not_connected(global_rank(peer));
      if (is_late) {
        throw TransferError(Failure::timeout, {peer},
                            no_connection.empty() ? "no message before the deadline" : no_connection);
      }
      log_slow_peer(health_.global_ranks(), rank(), peer, slow_warning.waited(now), no_connection);
    }
  }
  if (outcome->kind != Outcome::Kind::completed) throw_failure(message, *outcome, peer);
}

void TcpTransport::throw_failure(const AwaitedMessage& message, const Outcome& outcome, int peer) {
  if (outcome.kind == Outcome::Kind::mismatch) {
    throw MismatchError("rank " + std::to_string(global_rank(peer)) + " sent " + std::to_string(outcome.bytes) +
                        " bytes in a collective, but this rank expects " + std::to_string(message.memory.size()) +
                        ": pass tensors of the same size on all ranks.");
  }
  if (outcome.kind == Outcome::Kind::not_connected) {
    throw TransferError(Failure::connection_closed, {rank()},
                        "on rank " + std::to_string(global_rank(rank())) + " a connection to rank " +
                            std::to_string(global_rank(peer)) + " cannot be made: " + outcome.detail);
  }
  if (outcome.kind != Outcome::Kind::closed) health_.throw_if_peers_failed();
  const bool is_network = outcome.kind == Outcome::Kind::network_lost;
  throw TransferError(is_network ? Failure::network_lost : Failure::connection_closed, {peer}, describe_end(outcome));
}

}  // namespace

std::shared_ptr<Transport> make_tcp_transport(const Rendezvous& rendezvous, std::shared_ptr<Endpoint> endpoint,
                                              int rank, GroupHealth health) {
  return std::make_shared<TcpTransport>(std::move(endpoint), rendezvous, "job", rank, std::move(health));
}

}  // namespace tutti::comm
