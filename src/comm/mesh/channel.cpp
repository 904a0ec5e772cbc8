#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

#include "comm/engine/describe.h"
#include "comm/engine/operation_here.h"
#include "comm/mesh/mesh.h"
#include "comm/mesh/tags.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::comm {

class MeshChannel::MeshTransfer final : public Transfer {
 public:
  MeshTransfer(std::shared_ptr<MeshChannel> channel, std::unique_ptr<UnderWay> message, int member, Tag tag)
      : channel_(std::move(channel)), message_(std::move(message)), member_(member), tag_(tag) {}
  ~MeshTransfer() override {
    if (message_) channel_->bury(std::move(message_));
  }

  int peer() const override { return member_; }
  void wait(Deadline deadline) override {
    channel_->wait(*message_, member_, tag_.operation, deadline);
    message_.reset();
  }

 private:
  std::shared_ptr<MeshChannel> channel_;
  std::unique_ptr<UnderWay> message_;  // null once it has ended
  int member_;
  Tag tag_;
};

MeshChannel::MeshChannel(std::shared_ptr<Mesh> mesh, const Label& label) : mesh_(std::move(mesh)), label_(label) {}

MeshChannel::~MeshChannel() {
  std::unique_lock lock(mesh_->mutex_);
  mesh_->channels_.erase(label_.number);
  lock.unlock();
  say_over();
  lock.lock();
  if (is_clean_ && !closed_) mesh_->labels_.give_back(label_);
}

std::string MeshChannel::introduction() const {
  return std::to_string(label_.number) + " " + std::to_string(label_.turn);
}

void MeshChannel::introduce(GroupPulse pulse, const std::vector<std::string>& introductions) {
  pulse_ = std::move(pulse);
  for (const auto& text : introductions) {
    std::istringstream words(text);
    Label label;
    if (!(words >> label.number >> label.turn) || label.number < 0 || label.number >= channel_of_words) {
      throw PeerFailure("A rank of another program came to the store.", {});
    }
    labels_.push_back(label);
  }
}

std::unique_ptr<Transfer> MeshChannel::post(bool send, int member, Tag tag, const Block& block) {
  using Kind = TransferError::Kind;
  const int peer = pulse_.job_ranks().at(static_cast<std::size_t>(member));
  try {
    mesh_->connect_to(peer);
  } catch (const std::exception& error) {
    throw TransferError(Kind::closed, {member}, error.what());
  }
  {
    const std::lock_guard lock(mesh_->mutex_);
    if (closed_) throw TransferError(Kind::closed, {member}, "the channel was given up");
    if (left_.contains(peer)) throw TransferError(Kind::closed, {member}, "that rank has let go of the channel");
    talked_to_.insert(peer);
  }
  try {
    const int number = send ? labels_.at(static_cast<std::size_t>(member)).number : label_.number;
    auto message = mesh_->connections_->post(send, peer, mesh_tag(number, tag, block.size), block);
    return std::make_unique<MeshTransfer>(shared_from_this(), std::move(message), member, tag);
  } catch (const std::exception& error) {
    throw TransferError(Kind::closed, {member}, error.what());
  }
}

void MeshChannel::wait(UnderWay& message, int member, std::uint64_t operation, Deadline deadline) {
  const Operation* const call = OperationHere::now();
  const bool quiet = ToldElsewhere::now();
  const auto what = [&] { return call ? call->describe_with_place() : "operation " + std::to_string(operation); };
  try {
    mesh_->waits_->wait(message, {.deadline = deadline,
                                  .why_to_end = [&](Deadline now) { return why_to_end(member, deadline, now); },
                                  .say_so =
                                      [&](std::chrono::seconds waited) {
                                        if (!quiet) say_who_is_awaited(member, what(), waited);
                                      }});
  } catch (const TransferError& error) {
    if (error.kind() == TransferError::Kind::timeout) {
      const std::lock_guard lock(mesh_->mutex_);
      if (!closed_) late_.push_back(member);
    }
    throw;
  } catch (const std::exception& error) {
    pulse_.throw_if_silent();
    pulse_.hurry();
    throw TransferError(TransferError::Kind::closed, {member}, error.what());
  }
}

std::optional<TransferError> MeshChannel::why_to_end(int member, Deadline deadline, Deadline now) const {
  using Kind = TransferError::Kind;
  try {
    pulse_.throw_if_silent();
  } catch (const TransferError& silent) {
    return silent;
  }
  {
    const std::lock_guard lock(mesh_->mutex_);
    // Waits that another one's timeout ended must not blame the rank that they happen to wait for.
    if (closed_ && !late_.empty()) return TransferError(Kind::timeout, late_, "another message did not come");
    if (closed_) return TransferError(Kind::closed, {member}, "the channel was given up");
    const int peer = pulse_.job_ranks().at(static_cast<std::size_t>(member));
    if (left_.contains(peer)) return TransferError(Kind::closed, {member}, "that rank has let go of the channel");
  }
  if (now >= deadline) return TransferError(Kind::timeout, {member}, "it did not come");
  return std::nullopt;
}

// One rank speaks for all: the first one, or where that is awaited the second.
void MeshChannel::say_who_is_awaited(int member, const std::string& what, std::chrono::seconds waited) const {
  const auto& ranks = pulse_.job_ranks();
  const std::size_t speaker = member == 0 ? 1 : 0;
  if (ranks.at(speaker) != mesh_->rank_) return;
  Logger(mesh_->rank_)
      .warning(what + " of a group of " + std::to_string(ranks.size()) + " has waited for " +
               describe_duration(waited) + " for rank " + std::to_string(ranks.at(static_cast<std::size_t>(member))) +
               " (`tutti inspect` tells what it does)");
}

// Its memory may still be read and written: kept until the connections end.
void MeshChannel::bury(std::unique_ptr<UnderWay> message) noexcept {
  const std::lock_guard lock(mesh_->mutex_);
  is_clean_ = false;
  mesh_->buried_.push_back(std::move(message));
}

void MeshChannel::say_over() noexcept {
  std::unique_lock lock(mesh_->mutex_);
  if (std::exchange(said_over_, true)) return;
  const auto peers = talked_to_;
  lock.unlock();
  const auto& ranks = pulse_.job_ranks();
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    if (peers.contains(ranks[member])) mesh_->say_over(ranks[member], labels_.at(member));
  }
}

void MeshChannel::close() noexcept {
  {
    const std::lock_guard lock(mesh_->mutex_);
    closed_ = true;
  }
  mesh_->waits_->hurry();
  say_over();
}

}  // namespace tutti::comm
