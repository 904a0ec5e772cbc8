#pragma once
// Point-to-point messages among the ranks of a group: what every collective is written over.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend/peer_health.h"
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

/// Two messages meet when sender, receiver and tag agree; several with the same tag meet in order. If their lengths
/// differ, the receive fails: over TCP with a MismatchError; over MPI, where the length is a part of the tag, with a
/// TimeoutError.
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

/// Logs that the current operation waits for `peer`, on the one rank that reports for all: the first one, or where that
/// is awaited the second. `global_ranks` are those of the group. If there is no connection to the peer, for the reason
/// `no_connection`, every rank reports it.
void log_slow_peer(const std::vector<int>& global_ranks, int rank, int peer, std::chrono::seconds waited,
                   const std::string& no_connection = "");

/// Thread safe.
class Transport : public PeerHealth {
 public:
  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// A send may end only when its peer has posted the receive: post receives before waiting for sends.
  virtual std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Buffer& buffer) = 0;
  virtual std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Buffer& buffer) = 0;

  /// A transport for the ranks `members` (of this group, in their new order, this rank among them). Every member must
  /// call it with the same `name`, which must be new.
  virtual std::shared_ptr<Transport> split(const std::vector<int>& members, const std::string& name,
                                           std::chrono::milliseconds timeout) = 0;

  /// Every rank's `input`, by rank, without a message; nullopt where there is no other way. Every rank must call it,
  /// with as many bytes. Throws TimeoutError, PeerError.
  virtual std::optional<std::vector<std::byte>> bootstrap_all_gather(std::span<const std::byte> /*input*/,
                                                                     std::chrono::milliseconds /*timeout*/) {
    return std::nullopt;
  }

 protected:
  Transport(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {}

 private:
  std::string name_;
  int rank_;
  int size_;
};

}  // namespace tutti::comm
