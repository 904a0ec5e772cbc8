#include "comm/transport/tcp/tcp_channel.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "comm/backend/current_operation.h"
#include "comm/backend/describe.h"
#include "comm/backend/slow_operation_warning.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

using Failure = TransferError::Kind;

constexpr unsigned tag_phase_bits = 2;

}  // namespace

class TcpChannel::TcpMessage final : public Message {
 public:
  explicit TcpMessage(EventLoop& loop) : loop_(loop) {}

  void complete(const Outcome& outcome) override {
    owner = nullptr;
    const std::lock_guard lock(mutex_);  // while it notifies: the message may be destroyed afterwards
    outcome_ = outcome;
    notify();
  }
  bool has_callbacks() const override { return false; }
  /// Ends the current wait_until(), or the next one.
  void wake() {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    notify();
  }
  /// nullopt while the message is in flight.
  std::optional<Outcome> outcome() const {
    const std::lock_guard lock(mutex_);
    return outcome_;
  }
  /// Returns the outcome; nullopt at the deadline and after wake().
  std::optional<Outcome> wait_until(Deadline until) {
    std::unique_lock lock(mutex_);
    const auto is_over = [&] { return outcome_ || woken_; };
    if (!is_over()) {
      server_ = std::this_thread::get_id();
      lock.unlock();
      loop_.serve(
          [&] {
            const std::lock_guard again(mutex_);
            return is_over();
          },
          until);
      lock.lock();
      server_ = {};
      changed_.wait_until(lock, until, is_over);
    }
    woken_ = false;
    return outcome_;
  }
  void wait_for_outcome() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return outcome_.has_value(); });
  }

 private:
  void notify() {
    changed_.notify_all();
    if (server_ && server_ != std::this_thread::get_id()) loop_.interrupt();
  }

  EventLoop& loop_;
  mutable std::mutex mutex_;  // the loop's mutex may be held
  std::condition_variable changed_;
  std::optional<Outcome> outcome_;
  bool woken_ = false;
  std::optional<std::thread::id> server_;  // the thread that waits in EventLoop::serve()
};

class TcpChannel::TcpTransfer final : public Transfer {
 public:
  TcpTransfer(std::shared_ptr<TcpChannel> channel, std::shared_ptr<TcpMessage> message, int member,
              std::uint64_t operation)
      : channel_(std::move(channel)), message_(std::move(message)), member_(member), operation_(operation) {}
  ~TcpTransfer() override {
    if (!message_ || message_->outcome()) return;
    if (!channel_->endpoint_->open().cancel(message_)) message_->wait_for_outcome();
  }

  int peer() const override { return member_; }
  void wait(Deadline deadline) override {
    channel_->wait(*message_, member_, operation_, deadline);
    message_ = nullptr;
  }

 private:
  std::shared_ptr<TcpChannel> channel_;
  std::shared_ptr<TcpMessage> message_;  // null once it has completed
  int member_;
  std::uint64_t operation_;
};

TcpChannel::TcpChannel(std::shared_ptr<Endpoint> endpoint, std::uint64_t id, GroupHealth health, int own_rank)
    : endpoint_(std::move(endpoint)), id_(id), health_(std::move(health)), own_rank_(own_rank) {
  if (!health_.monitor()) return;
  failure_subscription_ = health_.monitor()->on_failure([this](const FailedPeers&) {
    const std::lock_guard lock(mutex_);
    for (TcpMessage* const message : waiting_) message->wake();
  });
}

TcpChannel::~TcpChannel() {
  failure_subscription_ = nullptr;
  close();
}

std::unique_ptr<Transfer> TcpChannel::post(bool is_send, int member, Tag tag, const Buffer& buffer) {
  EventLoop& loop = endpoint_->open();
  auto message = std::make_shared<TcpMessage>(loop);
  message->is_send = is_send;
  message->rank = health_.global_ranks().at(static_cast<std::size_t>(member));
  message->channel = id_;
  message->tag = tag.operation << tag_phase_bits | static_cast<std::uint64_t>(tag.phase);
  message->memory = {buffer.data, buffer.size};
  message->owner = buffer.owner;
  loop.post(message);
  return std::make_unique<TcpTransfer>(shared_from_this(), std::move(message), member, tag.operation);
}

void TcpChannel::wait(TcpMessage& message, int member, std::uint64_t operation, Deadline deadline) {
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
      health_.throw_if_peers_failed();
      outcome = message.wait_until(std::min({deadline, slow_warning.next(), health_.next_change()}));
      const auto now = Clock::now();
      if (outcome) break;
      if (now >= deadline) {
        const std::lock_guard lock(mutex_);
        late_members_.push_back(member);
        throw TransferError(Failure::timeout, {member}, "no message before the deadline");
      }
      if (slow_warning.due(now) && !SuppressSlowWarning::is_active())
        log_slow_peer(member, operation, slow_warning.waited(now));
    }
  }
  if (outcome->kind != Outcome::Kind::completed) throw_failure(message, *outcome, member);
}

void TcpChannel::throw_failure(const TcpMessage& message, const Outcome& outcome, int member) {
  switch (outcome.kind) {
    case Outcome::Kind::mismatch:
      throw MismatchError("rank " + std::to_string(member) + " sent " + std::to_string(outcome.bytes) +
                          " bytes in a collective, but this rank expects " + std::to_string(message.memory.size()) +
                          ": pass tensors of the same size on all ranks.");
    case Outcome::Kind::closed: {
      // A wait that ends because another wait timed out must name the ranks of that one, not its own peer.
      const std::lock_guard lock(mutex_);
      if (!late_members_.empty()) throw TransferError(Failure::timeout, late_members_, "another message timed out");
      throw TransferError(Failure::connection_closed, {member}, "the communicator was closed");
    }
    case Outcome::Kind::closed_by_peer:
      health_.throw_if_peers_failed();
      throw TransferError(Failure::connection_closed, {member}, "the peer closed the communicator");
    case Outcome::Kind::not_authenticated:
      throw TransferError(Failure::connection_closed, {member},
                          "the process at its address does not know the job's secret");
    default:
      health_.throw_if_peers_failed();
      throw TransferError(Failure::connection_closed, {member}, "connection closed");
  }
}

// One rank reports for all: the first one, or where that is awaited the second.
void TcpChannel::log_slow_peer(int member, std::uint64_t operation, std::chrono::seconds waited) const {
  const auto& ranks = health_.global_ranks();
  if (ranks.at(member == 0 ? 1 : 0) != own_rank_) return;
  const Operation* const call = CurrentOperation::get();
  Logger(own_rank_).warning(
      (call ? call->describe_with_call_site() : "operation " + std::to_string(operation)) + " of a group of " +
      std::to_string(ranks.size()) + " has waited for " + describe_duration(waited) + " for rank " +
      std::to_string(ranks.at(static_cast<std::size_t>(member))) + " (`tutti inspect` tells what it does)");
}

void TcpChannel::close() noexcept {
  try {
    if (auto* const loop = endpoint_->get_if_open()) loop->close_channel(id_, health_.global_ranks(), nullptr, true);
  } catch (const std::exception&) {
    // Without memory no close frames can be sent; peers see the connections close when the process exits.
  }
}

}  // namespace tutti::comm
