#pragma once
// Point-to-point messages among the ranks of a group: what every collective is written over.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/backend/transfer_error.h"

namespace tutti::comm {

/// Bytes and their owner, so that a transfer that is no longer awaited never accesses freed memory.
struct Buffer {
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<const void> owner;

  Buffer part(std::size_t offset, std::size_t length) const { return {data + offset, length, owner}; }
};

/// Which step of an operation a message belongs to.
enum class Phase : std::uint8_t { small_all_gather, reduce_scatter, all_gather, data };

/// Two messages meet when sender, receiver, tag and length agree; several with the same tag meet in order. The length
/// is part of it because Gloo ends the process when a message does not fit: so a size mismatch is a TimeoutError
/// instead.
struct Tag {
  std::uint64_t operation = 0;
  Phase phase = Phase::data;
};

/// A message in flight. It may be destroyed at any time; its memory stays allocated until the transfer has ended.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual int peer() const = 0;
  /// Throws TransferError naming the peer. Call from one thread, once.
  virtual void wait(Deadline deadline) = 0;
};

using Transfers = std::vector<std::unique_ptr<Transfer>>;

/// Waits for all of `transfers`. At the deadline the error names every peer whose transfer has not ended.
void wait_all(Transfers& transfers, Deadline deadline);

/// Thread safe.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// A send may end only when its peer has posted the receive: post receives before waiting for sends.
  virtual std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Buffer& buffer) = 0;
  virtual std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Buffer& buffer) = 0;

  /// A transport for the ranks `members` (of this group, in their new order, this rank among them). Every member must
  /// call it with the same `name`, which must be new.
  virtual std::shared_ptr<Transport> split(const std::vector<int>& members, const std::string& name,
                                           std::chrono::milliseconds timeout) = 0;

  /// Connects now what would be connected with the first message. Every rank must call it. Throws PeerError.
  virtual void connect() {}
  /// Every rank's `input`, by rank, without a message; nullopt where there is no other way. Every rank must call it,
  /// with as many bytes. Throws TimeoutError, PeerError.
  virtual std::optional<std::vector<std::byte>> bootstrap_all_gather(std::span<const std::byte> input,
                                                                     std::chrono::milliseconds timeout);

  /// True if the peer is known to have exited or closed the connection.
  virtual bool peer_exited(int) const { return false; }
  /// Throws TransferError if ranks of other nodes have missed heartbeats for the heartbeat timeout.
  virtual void throw_if_heartbeat_lost() const {}
  virtual std::shared_ptr<FailureBoard> failure_board() = 0;
  /// Ends all transfers, here and (as closed connections) on the other ranks. After it nothing touches their memory.
  virtual void close() noexcept = 0;
};

}  // namespace tutti::comm
