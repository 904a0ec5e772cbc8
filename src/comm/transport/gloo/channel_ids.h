#pragma once
// What a process calls its channels, for others to send to. Pure.
//
// Each rank chooses numbers of its own and tells them to the other members of a channel, so the ranks need not agree on
// one.
#include <cstdint>
#include <deque>
#include <optional>

namespace tutti::comm {

/// A number as it stands in tags, and which channel has it for now.
struct ChannelId {
  int number = 0;
  std::uint32_t generation = 0;

  bool operator==(const ChannelId&) const = default;
};

class ChannelIdPool {
 public:
  ChannelIdPool();
  /// nullopt where none is left.
  std::optional<ChannelId> acquire();
  /// No message is in flight to or from the channel that had it. A number rests for as long as others do: a rank that
  /// called more than the others may still send to it.
  void release(const ChannelId& id) { free_.push_back(id.number); }

 private:
  std::deque<int> free_;
  std::uint32_t generation_ = 0;
};

}  // namespace tutti::comm
