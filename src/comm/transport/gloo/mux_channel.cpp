#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

#include "comm/backend/current_operation.h"
#include "comm/backend/describe.h"
#include "comm/transport/gloo/connection_mux.h"
#include "comm/transport/gloo/tag_layout.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::comm {

class MuxChannel::MuxTransfer final : public Transfer {
 public:
  MuxTransfer(std::shared_ptr<MuxChannel> channel, std::unique_ptr<PendingMessage> message, int member, Tag tag)
      : channel_(std::move(channel)), message_(std::move(message)), member_(member), tag_(tag) {}
  ~MuxTransfer() override {
    if (message_) channel_->orphan(std::move(message_));
  }

  int peer() const override { return member_; }
  void wait(Deadline deadline) override {
    channel_->wait(*message_, member_, tag_.operation, deadline);
    message_.reset();
  }

 private:
  std::shared_ptr<MuxChannel> channel_;
  std::unique_ptr<PendingMessage> message_;  // null once it has ended
  int member_;
  Tag tag_;
};

MuxChannel::MuxChannel(std::shared_ptr<ConnectionMux> mux, const ChannelId& id) : mux_(std::move(mux)), id_(id) {}

MuxChannel::~MuxChannel() {
  std::unique_lock lock(mux_->mutex_);
  mux_->channels_.erase(id_.number);
  lock.unlock();
  notify_close();
  lock.lock();
  if (has_no_orphans_ && !closed_) mux_->channel_ids_.release(id_);
}

std::string MuxChannel::local_address() const {
  return std::to_string(id_.number) + " " + std::to_string(id_.generation);
}

void MuxChannel::set_peers(GroupHealth health, const std::vector<std::string>& addresses) {
  health_ = std::move(health);
  for (const auto& text : addresses) {
    std::istringstream fields(text);
    ChannelId id;
    if (!(fields >> id.number >> id.generation) || id.number < 0 || id.number >= control_channel) {
      throw PeerError("Unexpected data in the store: another program uses the same store.", {});
    }
    peer_ids_.push_back(id);
  }
}

std::unique_ptr<Transfer> MuxChannel::post(bool send, int member, Tag tag, const Buffer& block) {
  using Kind = TransferError::Kind;
  const int peer = health_.global_ranks().at(static_cast<std::size_t>(member));
  try {
    mux_->connect_to(peer);
  } catch (const std::exception& error) {
    throw TransferError(Kind::connection_closed, {member}, first_line(error.what()));
  }
  {
    const std::lock_guard lock(mux_->mutex_);
    if (closed_) throw TransferError(Kind::connection_closed, {member}, "the communicator was closed");
    if (closed_peers_.contains(peer))
      throw TransferError(Kind::connection_closed, {member}, "the peer closed the communicator");
    contacted_.insert(peer);
  }
  try {
    const int number = send ? peer_ids_.at(static_cast<std::size_t>(member)).number : id_.number;
    auto message = mux_->connections_->post(send, peer, gloo_tag(number, tag, block.size), block);
    return std::make_unique<MuxTransfer>(shared_from_this(), std::move(message), member, tag);
  } catch (const std::exception& error) {
    throw TransferError(Kind::connection_closed, {member}, first_line(error.what()));
  }
}

void MuxChannel::wait(PendingMessage& message, int member, std::uint64_t operation, Deadline deadline) {
  const Operation* const call = CurrentOperation::get();
  const bool suppress = SuppressSlowWarning::is_active();
  const auto call_text = [&] {
    return call ? call->describe_with_call_site() : "operation " + std::to_string(operation);
  };
  try {
    mux_->wait_canceller_->wait(message,
                                {.deadline = deadline,
                                 .cancel_reason = [&](Deadline now) { return cancel_reason(member, deadline, now); },
                                 .on_slow =
                                     [&](std::chrono::seconds waited) {
                                       if (!suppress) log_slow_peers(member, call_text(), waited);
                                     }});
  } catch (const TransferError& error) {
    if (error.kind() == TransferError::Kind::timeout) {
      const std::lock_guard lock(mux_->mutex_);
      if (!closed_) late_members_.push_back(member);
    }
    throw;
  } catch (const std::exception& error) {
    health_.throw_if_heartbeat_lost();
    health_.poll_fast();
    throw TransferError(TransferError::Kind::connection_closed, {member}, first_line(error.what()));
  }
}

std::optional<TransferError> MuxChannel::cancel_reason(int member, Deadline deadline, Deadline now) const {
  using Kind = TransferError::Kind;
  try {
    health_.throw_if_heartbeat_lost();
  } catch (const TransferError& silent) {
    return silent;
  }
  {
    const std::lock_guard lock(mux_->mutex_);
    // A wait that ends because another wait timed out must name the ranks of that one, not its own peer.
    if (closed_ && !late_members_.empty())
      return TransferError(Kind::timeout, late_members_, "another message timed out");
    if (closed_) return TransferError(Kind::connection_closed, {member}, "the communicator was closed");
    const int peer = health_.global_ranks().at(static_cast<std::size_t>(member));
    if (closed_peers_.contains(peer))
      return TransferError(Kind::connection_closed, {member}, "the peer closed the communicator");
  }
  if (now >= deadline) return TransferError(Kind::timeout, {member}, "no message before the deadline");
  return std::nullopt;
}

// One rank speaks for all: the first one, or where that is awaited the second.
void MuxChannel::log_slow_peers(int member, const std::string& call_text, std::chrono::seconds waited) const {
  const auto& ranks = health_.global_ranks();
  const std::size_t reporting_member = member == 0 ? 1 : 0;
  if (ranks.at(reporting_member) != mux_->rank_) return;
  Logger(mux_->rank_)
      .warning(call_text + " of a group of " + std::to_string(ranks.size()) + " has waited for " +
               describe_duration(waited) + " for rank " + std::to_string(ranks.at(static_cast<std::size_t>(member))) +
               " (`tutti inspect` tells what it does)");
}

// Its memory may still be read and written: kept until the connections end.
void MuxChannel::orphan(std::unique_ptr<PendingMessage> message) noexcept {
  const std::lock_guard lock(mux_->mutex_);
  has_no_orphans_ = false;
  mux_->orphaned_.push_back(std::move(message));
}

void MuxChannel::notify_close() noexcept {
  std::unique_lock lock(mux_->mutex_);
  if (std::exchange(close_notified_, true)) return;
  const auto peers = contacted_;
  lock.unlock();
  const auto& ranks = health_.global_ranks();
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    if (peers.contains(ranks[member])) mux_->notify_close(ranks[member], peer_ids_.at(member));
  }
}

void MuxChannel::close() noexcept {
  {
    const std::lock_guard lock(mux_->mutex_);
    closed_ = true;
  }
  mux_->wait_canceller_->wake();
  notify_close();
}

}  // namespace tutti::comm
