#include "comm/transport/gloo/connection_mux.h"

#include <atomic>
#include <cstddef>
#include <exception>
#include <iterator>
#include <span>
#include <utility>

#include "comm/transport/gloo/tag_layout.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// At this number the notices that were delivered are released.
constexpr std::size_t max_sent_notices = 256;

constexpr Tag close_tag{.operation = 0, .phase = Phase::data};
constexpr Tag proof_tag{.operation = 0, .phase = Phase::small_all_gather};

// What says that a channel is over, by the label that the one who hears it gave to it; never 0.
std::uint64_t encode_close(const ChannelId& id) {
  return std::uint64_t{id.generation} << 32 | static_cast<std::uint64_t>(id.number) << 1 | 1U;
}
ChannelId decode_close(std::uint64_t notice) {
  return {.number = static_cast<int>(notice >> 1 & (max_channels - 1)),
          .generation = static_cast<std::uint32_t>(notice >> 32)};
}

Buffer make_owned_buffer(std::vector<std::byte> bytes) {
  const auto memory = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  return {memory->data(), memory->size(), memory};
}

}  // namespace

// Another rank that this one has talked to.
struct ConnectionMux::Peer {
  explicit Peer(int rank_) : rank(rank_) {}

  const int rank;
  std::once_flag connected;

  // The next word from it is received here, whenever it comes.
  std::shared_ptr<std::uint64_t> close_notice;
  std::unique_ptr<PendingMessage> close_receive;

  std::mutex auth_mutex;
  bool is_authenticated = false;
  Buffer proof;
  std::unique_ptr<PendingMessage> proof_received;
  std::unique_ptr<PendingMessage> proof_sent;
};

ConnectionMux::ConnectionMux(Connect connect, int rank, int size, JobSecretPtr secret,
                             std::shared_ptr<HeartbeatMonitor> monitor)
    : connect_(std::move(connect)), rank_(rank), monitor_(std::move(monitor)), peer_auth_(std::move(secret), rank) {
  for (int peer = 0; peer < size; ++peer) peers_.push_back(std::make_unique<Peer>(peer));
}

ConnectionMux::~ConnectionMux() {
  if (connections_) connections_->close();
}

std::shared_ptr<MuxChannel> ConnectionMux::open_channel() {
  {
    const std::lock_guard lock(connect_mutex_);
    if (!connections_) {
      connections_ = connect_();
      wait_canceller_ = std::make_unique<WaitCanceller>([this] { poll_close_notices(); });
      if (monitor_)
        failure_subscription_ = monitor_->on_failure([this](const FailedPeers&) { wait_canceller_->wake(); });
    }
  }
  const std::lock_guard lock(mutex_);
  const auto id = channel_ids_.acquire();
  if (!id) {
    throw Error("rank " + std::to_string(rank_) + " has " + std::to_string(control_channel) +
                " groups and duplicates that send messages, which is the limit. Destroy some, or use "
                "get_or_duplicate().");
  }
  auto channel = std::make_shared<MuxChannel>(shared_from_this(), *id);
  channels_.emplace(id->number, channel.get());
  return channel;
}

std::string ConnectionMux::attach_challenge(const std::string& text) const {
  const std::lock_guard lock(mutex_);
  return peer_auth_.attach_challenge(text);
}

std::vector<std::string> ConnectionMux::detach_challenges(const std::vector<std::string>& all,
                                                          const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  return peer_auth_.detach_challenges(all, ranks);
}

void ConnectionMux::connect(const std::vector<int>& peers, Deadline deadline) {
  for (const int peer : peers) connect_to(peer);
  if (!peer_auth_.is_required()) return;
  for (const int peer : peers) authenticate(peer, deadline);
}

void ConnectionMux::connect_to(int rank) {
  Peer& peer = *peers_.at(static_cast<std::size_t>(rank));
  std::call_once(peer.connected, [&] {
    post_close_receive(peer);
    if (peer_auth_.is_required()) {
      std::unique_lock lock(mutex_);
      const auto own_proof = make_owned_buffer(peer_auth_.proof_for(rank));
      lock.unlock();
      peer.proof = make_owned_buffer(std::vector<std::byte>(PeerAuth::proof_size));
      const int tag = gloo_tag(control_channel, proof_tag, PeerAuth::proof_size);
      peer.proof_received = connections_->post(false, rank, tag, peer.proof);
      peer.proof_sent = connections_->post(true, rank, tag, own_proof);
    }
    const std::lock_guard lock(mutex_);
    connected_peers_.push_back(&peer);
  });
}

// Gloo accepts every client that reaches it, so nothing else is sent before the proof has been verified.
void ConnectionMux::authenticate(int rank, Deadline deadline) {
  Peer& peer = *peers_.at(static_cast<std::size_t>(rank));
  const std::lock_guard auth_lock(peer.auth_mutex);
  if (peer.is_authenticated) return;
  wait(*peer.proof_received, rank, deadline);
  wait(*peer.proof_sent, rank, deadline);
  const std::lock_guard lock(mutex_);
  peer.is_authenticated = peer_auth_.verify(rank, std::span(peer.proof.data, peer.proof.size));
  if (peer.is_authenticated) return;
  throw TransferError(TransferError::Kind::connection_closed, {rank},
                      "the process at its address does not know the job's secret");
}

void ConnectionMux::wait(PendingMessage& message, int rank, Deadline deadline) {
  wait_canceller_->wait(message, {.deadline = deadline,
                                  .cancel_reason = [&](Deadline now) -> std::optional<TransferError> {
                                    if (now < deadline) return std::nullopt;
                                    return TransferError(TransferError::Kind::timeout, {rank}, "it did not answer");
                                  },
                                  .on_slow = [](std::chrono::seconds) {}});
}

void ConnectionMux::post_close_receive(Peer& peer) {
  peer.close_notice = std::make_shared<std::uint64_t>(0);
  const Buffer block{reinterpret_cast<std::byte*>(peer.close_notice.get()), sizeof(*peer.close_notice),
                     peer.close_notice};
  peer.close_receive = connections_->post(false, peer.rank, gloo_tag(control_channel, close_tag, block.size), block);
}

// A notice has arrived once it is not zero. Asking Gloo would block.
void ConnectionMux::poll_close_notices() {
  std::unique_lock lock(mutex_);
  const auto peers = connected_peers_;
  lock.unlock();
  for (Peer* const peer : peers) {
    if (std::atomic_ref(*peer->close_notice).load(std::memory_order_acquire) == 0) continue;
    try {
      if (!peer->close_receive->wait()) continue;
      const ChannelId id = decode_close(*peer->close_notice);
      lock.lock();
      const auto channel = channels_.find(id.number);
      if (channel != channels_.end() && channel->second->id_ == id) channel->second->closed_peers_.insert(peer->rank);
      lock.unlock();
      post_close_receive(*peer);
    } catch (const std::exception&) {
      // The connection has ended, as who waits will see.
      *peer->close_notice = 0;
    }
  }
}

void ConnectionMux::notify_close(int peer, const ChannelId& id) noexcept {
  try {
    const auto notice = std::make_shared<std::uint64_t>(encode_close(id));
    const Buffer block{reinterpret_cast<std::byte*>(notice.get()), sizeof(*notice), notice};
    auto sent = connections_->post(true, peer, gloo_tag(control_channel, close_tag, block.size), block);
    std::unique_lock lock(mutex_);
    sent_notices_.push_back(std::move(sent));
    if (sent_notices_.size() < max_sent_notices) return;
    lock.unlock();
    reap_sent_notices();
  } catch (const std::exception&) {
    // The connection has ended, which says the same.
  }
}

void ConnectionMux::reap_sent_notices() {
  std::unique_lock lock(mutex_);
  auto notices = std::exchange(sent_notices_, {});
  lock.unlock();
  std::erase_if(notices, [&](const std::unique_ptr<PendingMessage>& notice) {
    try {
      wait(*notice, rank_, Clock::now());
      return true;
    } catch (const TransferError&) {
      return false;
    } catch (const std::exception&) {
      return true;  // the connection has ended
    }
  });
  lock.lock();
  sent_notices_.insert(sent_notices_.end(), std::make_move_iterator(notices.begin()),
                       std::make_move_iterator(notices.end()));
}

}  // namespace tutti::comm
