#pragma once
// The connections of a process to other ranks of its job, which all its channels share. A channel is a number in the
// tags of messages: it costs no connection, no thread and no descriptor. Two ranks connect when they first talk.
//
// Gloo cannot cancel. The messages that a failed channel has in flight stay in flight, with their memory, until the
// multiplexer is destroyed. Its waits are cancelled (wait_canceller.h), and other channels continue to use the
// connections. A rank that closes a channel sends a close notice to each rank that it has contacted there, so that
// these stop waiting.
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/health/heartbeat_monitor.h"
#include "comm/transport/gloo/channel_ids.h"
#include "comm/transport/gloo/connections.h"
#include "comm/transport/gloo/peer_auth.h"
#include "comm/transport/gloo/wait_canceller.h"

namespace tutti::comm {

class MuxChannel;

/// One for a process and connect. Thread safe.
class ConnectionMux : public std::enable_shared_from_this<ConnectionMux> {
 public:
  /// How connections are made when they are first needed; it may throw.
  using Connect = std::function<std::unique_ptr<Connections>()>;

  /// `rank` of `size` in the job. `monitor` is null with one node.
  ConnectionMux(Connect connect, int rank, int size, JobSecretPtr secret, std::shared_ptr<HeartbeatMonitor> monitor);
  ~ConnectionMux();
  ConnectionMux(const ConnectionMux&) = delete;
  ConnectionMux& operator=(const ConnectionMux&) = delete;

  /// A new channel; the connections are made where there are none yet. Throws what that throws, and Error where a
  /// process has too many channels.
  std::shared_ptr<MuxChannel> open_channel();

  /// See PeerAuth.
  std::string attach_challenge(const std::string& text) const;
  std::vector<std::string> detach_challenges(const std::vector<std::string>& all, const std::vector<int>& ranks);
  bool requires_authentication() const { return peer_auth_.is_required(); }

  /// Connects to ranks of the job that this one has not talked to, and asks for their proof where the job has a secret.
  /// They must do the same. Throws TransferError, which names ranks of the job, and what Connections::post() throws.
  void connect(const std::vector<int>& peers, Deadline deadline);

 private:
  friend class MuxChannel;
  struct Peer;

  void connect_to(int peer);
  void authenticate(int peer, Deadline deadline);
  void post_close_receive(Peer& peer);
  void poll_close_notices();
  void notify_close(int peer, const ChannelId& id) noexcept;
  void reap_sent_notices();
  void wait(PendingMessage& message, int peer, Deadline deadline);

  const Connect connect_;
  const int rank_;
  const std::shared_ptr<HeartbeatMonitor> monitor_;

  std::mutex connect_mutex_;  // held while the connections are made
  // In this order: messages go before what carries them.
  std::unique_ptr<Connections> connections_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank

  mutable std::mutex mutex_;  // of what follows, but for wait_canceller_ and failure_subscription_, and of what
                              // channels say that it holds
  std::vector<std::unique_ptr<PendingMessage>> orphaned_;
  std::vector<std::unique_ptr<PendingMessage>> sent_notices_;
  PeerAuth peer_auth_;
  ChannelIdPool channel_ids_;
  std::map<int, MuxChannel*> channels_;  // by number
  std::vector<Peer*> connected_peers_;

  std::unique_ptr<WaitCanceller> wait_canceller_;
  std::shared_ptr<void> failure_subscription_;
};

/// A group of ranks that send one another messages. Thread safe.
class MuxChannel : public std::enable_shared_from_this<MuxChannel> {
 public:
  MuxChannel(std::shared_ptr<ConnectionMux> mux, const ChannelId& id);
  /// Sends close notices.
  ~MuxChannel();
  MuxChannel(const MuxChannel&) = delete;
  MuxChannel& operator=(const MuxChannel&) = delete;

  /// What others have to know to send to this rank.
  std::string local_address() const;
  /// What all members said, this rank among them. Before the first message. Throws PeerError for what is none.
  void set_peers(GroupHealth health, const std::vector<std::string>& addresses);

  /// `member` by its rank in the group. Throws TransferError.
  std::unique_ptr<Transfer> post(bool send, int member, Tag tag, const Buffer& block);

  /// Ends all waits, here and on the other ranks.
  void close() noexcept;

 private:
  friend class ConnectionMux;
  class MuxTransfer;

  void wait(PendingMessage& message, int member, std::uint64_t operation, Deadline deadline);
  std::optional<TransferError> cancel_reason(int member, Deadline deadline, Deadline now) const;
  void log_slow_peers(int member, const std::string& call_text, std::chrono::seconds waited) const;
  void orphan(std::unique_ptr<PendingMessage> message) noexcept;
  void notify_close() noexcept;

  const std::shared_ptr<ConnectionMux> mux_;
  const ChannelId id_;
  GroupHealth health_{nullptr, {}};
  std::vector<ChannelId> peer_ids_;  // by member

  // Guarded by ConnectionMux::mutex_.
  bool closed_ = false;
  bool close_notified_ = false;
  bool has_no_orphans_ = true;     // no message of it is in flight
  std::set<int> contacted_;        // ranks of the job
  std::set<int> closed_peers_;     // of these
  std::vector<int> late_members_;  // members for which a wait has timed out
};

}  // namespace tutti::comm
