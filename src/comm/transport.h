#pragma once
// Point-to-point messages among the ranks of a group: what every collective is written over.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::comm {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// Bytes together with what keeps them alive, so that a transfer nobody waits for any more never touches freed memory.
struct Block {
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<const void> owner;

  Block part(std::size_t offset, std::size_t length) const { return {data + offset, length, owner}; }
};

/// Which step of an operation a message belongs to.
enum class Phase : std::uint8_t { exchange, versions, results, data };

/// Two messages meet when sender, receiver, tag and length agree; several with the same tag meet in order. The length
/// is part of it because Gloo ends the process when a message does not fit: a mismatch had better be a Timeout.
struct Tag {
  std::uint64_t operation = 0;
  Phase phase = Phase::data;
};

/// A transfer that did not end well. The channel turns it into a PeerFailure or Timeout that says who is at fault.
class TransferError : public std::exception {
 public:
  enum class Kind { timeout, closed };

  TransferError(Kind kind, std::vector<int> peers, std::string detail)
      : kind_(kind), peers_(std::move(peers)), detail_(std::move(detail)) {}
  Kind kind() const { return kind_; }
  const std::vector<int>& peers() const { return peers_; }
  const char* what() const noexcept override { return detail_.c_str(); }

 private:
  Kind kind_;
  std::vector<int> peers_;
  std::string detail_;
};

/// One message under way. May be let go at any time; its memory then stays alive until it has ended.
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

/// Where ranks of a group leave word about a failure. Outlives the group's connections.
class Bulletin {
 public:
  virtual ~Bulletin() = default;
  virtual void post(int rank, const std::string& text) = 0;
  /// By rank what was posted. Throws when the bulletin cannot be reached any more.
  virtual std::vector<std::optional<std::string>> read() = 0;
  /// The rank whose end makes the bulletin unreachable; -1 for none.
  virtual int holder() const = 0;
};

/// Thread safe.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// A send may end only when its peer has posted the receive: post receives before waiting for sends.
  virtual std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Block& block) = 0;
  virtual std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Block& block) = 0;

  /// Connects the ranks `members` (of this group, in their new order, this rank among them) anew. Every member must
  /// call it with the same `name`, which must be new.
  virtual std::shared_ptr<Transport> connect_again(const std::vector<int>& members, const std::string& name,
                                                   std::chrono::milliseconds timeout) = 0;

  virtual std::shared_ptr<Bulletin> bulletin() = 0;
  /// Ends all transfers, here and (as closed connections) on the other ranks. After it nothing touches their memory.
  virtual void close() noexcept = 0;
};

}  // namespace tutti::comm
