#pragma once
// A message that a rank sends or receives, as the endpoint sees it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend/transfer_error.h"
#include "comm/transport/tcp/frame.h"

namespace tutti::comm {

inline constexpr int any_source = -1;

/// How a message ended.
struct Outcome {
  enum class Kind {
    completed,
    timed_out,          ///< at its deadline
    closed,             ///< this rank has closed the channel: see `failure`
    closed_by_peer,     ///< the peer has closed the channel
    disconnected,       ///< the connection to the peer has ended, or could not be made: see `detail`
    network_lost,       ///< the peer's machine acknowledges nothing, also if `detail` is set
    not_connected,      ///< this rank cannot make a connection: see `detail`
    not_authenticated,  ///< the peer does not know the job's secret
    exited,             ///< the peer exited before it was connected
    peer_failed,        ///< see `failure`
    mismatch,           ///< the peer's message has `bytes` bytes
    withdrawn,          ///< the sender stopped waiting for the receive
    not_sent,           ///< the endpoint was destroyed before
  };
  Kind kind = Kind::completed;
  int source = any_source;       ///< rank in the job: the sender of the message that a receive has matched
  std::uint64_t bytes = 0;       ///< of the peer's message, for `mismatch`
  std::exception_ptr failure{};  ///< for `closed`, where it may be null, and for `peer_failed`
  std::string detail{};          ///< why there was never a connection, such as too many open files
};

/// Why the connection to the peer has ended, for a text about the peer.
inline std::string describe_end(const Outcome& outcome) {
  if (!outcome.detail.empty()) return outcome.detail;
  if (outcome.kind == Outcome::Kind::network_lost)
    return "its machine acknowledges nothing: check the network between the two machines";
  if (outcome.kind == Outcome::Kind::not_authenticated)
    return "the process at its address does not know the job's secret";
  return "connection closed";
}

/// Ranks are those in the job.
struct Message {
  virtual ~Message() = default;
  /// Called once, without the endpoint's mutex. The endpoint does not access the memory afterwards.
  virtual void complete(const Outcome& outcome) = 0;
  /// Whether complete() runs code that may call the communicator.
  virtual bool has_callbacks() const { return true; }

  bool is_send = false;
  int rank = any_source;  ///< the peer
  std::uint64_t channel = 0;
  std::uint64_t tag = 0;
  std::span<std::byte> memory{};
  std::shared_ptr<const void> owner{};          ///< of the memory
  std::uint64_t eager_bytes = max_eager_bytes;  ///< a longer message is announced; at most max_eager_bytes
  std::span<const int> sources{};               ///< of a receive from any_source
  std::optional<Deadline> deadline{};           ///< at which the endpoint ends the message
  // The endpoint calls these now and then for a message with a deadline. Both may be empty.
  std::function<bool()> is_peer_gone{};                   ///< whether unconnected peers will send nothing more
  std::function<std::exception_ptr()> failure_of_peer{};  ///< null while the peer is healthy
  std::optional<Deadline> gone_since{};                   ///< when is_peer_gone() became true
};
using MessagePtr = std::shared_ptr<Message>;

/// Kept until the process exits, because ranks may connect at any time: a bit for each rank.
struct ClosedChannel {
  std::uint64_t channel = 0;
  std::vector<bool> is_member{};  ///< by rank, up to the last member
  std::exception_ptr failure{};   ///< of messages of the channel; may be null

  bool concerns(int rank) const {
    const auto index = static_cast<std::size_t>(rank);
    return index < is_member.size() && is_member[index];
  }
};

/// For ClosedChannel::is_member.
inline std::vector<bool> bits_of(const std::vector<int>& ranks) {
  std::vector<bool> bits(ranks.empty() ? 0 : static_cast<std::size_t>(std::ranges::max(ranks)) + 1);
  for (const int rank : ranks) bits[static_cast<std::size_t>(rank)] = true;
  return bits;
}

/// Bytes of a message that came before its receive.
using ReceivedBytes = std::shared_ptr<const std::byte[]>;

/// What follows from an event: messages that have ended, and frames to send.
struct Effects {
  struct Completion {
    MessagePtr message;
    Outcome outcome;
    ReceivedBytes bytes{};  ///< to copy into the message's memory before complete()
  };
  std::vector<Completion> completions;
  std::vector<std::pair<int, FrameHeader>> replies;  ///< with the rank that each is for

  void complete(MessagePtr message, Outcome outcome) {
    completions.push_back({std::move(message), std::move(outcome)});
  }
  void reply(int rank, const FrameHeader& header) { replies.emplace_back(rank, header); }
};

}  // namespace tutti::comm
