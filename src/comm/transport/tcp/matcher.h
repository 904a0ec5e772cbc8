#pragma once
// Which message goes to which receive, for all channels of a process. Messages of one sender with one tag match
// receives in their order. Pure: it touches memory that it is given.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/transport/tcp/message.h"

namespace tutti::comm {

/// A message without a matching receive so far.
struct UnexpectedMessage {
  int source = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;  ///< of an announced message that has not been pulled; 0 otherwise
  std::shared_ptr<std::byte[]> memory{};
  bool complete = false;
  MessagePtr receive{};  ///< the receive that matches, while the bytes are still being read
};

/// What takes the bytes of a message: a receive or an unexpected message; nothing if that was removed.
struct Destination {
  MessagePtr receive{};
  std::shared_ptr<UnexpectedMessage> unexpected{};

  MessagePtr& receiver() { return unexpected ? unexpected->receive : receive; }
  std::byte* memory() const {
    return unexpected ? unexpected->memory.get() : receive ? receive->memory.data() : nullptr;
  }
};

/// The bytes behind a frame header that are being read.
struct Body {
  std::byte* to = nullptr;  ///< where the next bytes go; null for bytes to discard
  std::uint64_t left = 0;
  Destination destination{};  ///< whose memory it is
};

/// Call with the endpoint's mutex held.
class Matcher {
 public:
  static constexpr std::uint64_t entry_bytes = 256;  ///< about what the matcher needs for one message
  /// `unexpected_limit`: bytes of messages without a matching receive, with those that an entry takes.
  explicit Matcher(std::uint64_t unexpected_limit = std::uint64_t{1} << 30) : unexpected_limit_(unexpected_limit) {}

  void receive(MessagePtr message, Effects& effects);

  /// False if the bytes of the message must stay on the wire for now. Ask again after a receive.
  bool can_accept(const FrameHeader& header, int from) const;
  /// A message, announcement, payload, withdrawal or close of rank `from` has come: where the bytes behind it go.
  /// Returns false for a frame that does not belong there. Throws std::bad_alloc.
  bool on_frame(const FrameHeader& header, int from, Body& body, Effects& effects);
  /// All bytes of the body have been read.
  void on_body(Body& body, int from, Effects& effects);
  /// The connection to the rank has ended, and so do its messages. `body` is what was being read.
  void on_disconnect(int from, Body& body, Outcome reason, Effects& effects);

  /// Whether no message has come for the receive so far.
  bool is_waiting(const Message& receive) const;
  /// Forgets the receive, unless a body has it. Returns false if it does not wait here.
  bool remove(const Message& receive);
  /// Receives of the channel end with its failure, later ones too. Returns false if the channel was closed before.
  bool close_channel(const ClosedChannel& closed, Effects& effects);
  /// By channel.
  const std::unordered_map<std::uint64_t, ClosedChannel>& closed_channels() const { return closed_channels_; }
  /// Why a message with the rank ends at once; `completed` if it does not.
  Outcome end_reason(std::uint64_t channel, int rank) const;

 private:
  struct Channel {
    std::deque<MessagePtr> receives;
    std::deque<std::shared_ptr<UnexpectedMessage>> unexpected;
    std::set<int> closed_by;
  };

  void on_message(const FrameHeader& header, int from, Body& body, Effects& effects);
  bool on_announce(const FrameHeader& header, int from, Effects& effects);
  void on_withdraw(const FrameHeader& header, int from, Effects& effects);
  void on_close(std::uint64_t channel, int from, Effects& effects);
  bool on_payload(const FrameHeader& header, int from, Body& body);
  std::shared_ptr<UnexpectedMessage> add_unexpected(const FrameHeader& header, int from, bool with_memory);
  MessagePtr take_receive(std::uint64_t channel, int from, std::uint64_t tag);
  bool fits(const MessagePtr& receive, int from, std::uint64_t bytes, Effects& effects) const;
  void pull(const FrameHeader& header, int from, MessagePtr receive, Effects& effects);
  void fail_receives(Channel& channel, int from, const Outcome& reason, Effects& effects);
  bool has_capacity_for(std::uint64_t bytes) const {
    return bytes + entry_bytes <= unexpected_limit_ - std::min(unexpected_limit_, unexpected_bytes_);
  }
  static std::uint64_t memory_of(const UnexpectedMessage& unexpected) {
    return entry_bytes + (unexpected.memory ? unexpected.bytes : 0);
  }
  void release(const UnexpectedMessage& unexpected) { unexpected_bytes_ -= memory_of(unexpected); }

  const std::uint64_t unexpected_limit_;
  std::uint64_t unexpected_bytes_ = 0;
  std::unordered_map<std::uint64_t, Channel> channels_;
  std::unordered_map<std::uint64_t, ClosedChannel> closed_channels_;
  std::map<int, Outcome> disconnected_;                          // by rank
  std::map<std::pair<int, std::uint64_t>, Destination> pulled_;  // by sender and id
  std::map<int, std::uint64_t> last_announced_;                  // by sender: its ids ascend
};

}  // namespace tutti::comm
