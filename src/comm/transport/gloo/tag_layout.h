#pragma once
// Tags of messages on connections that all channels share. Pure.
#include <cstddef>
#include <cstdint>

#include "comm/transport/transport.h"

namespace tutti::comm {

/// How many channels of a process tags can tell apart.
inline constexpr int max_channels = 1 << 9;

/// c10d's tags have 31 bits: 9 of the receiver's number for the channel, 10 of the operation's, 2 of the phase, 10 of a
/// hash of the length. What does not fit does not meet.
constexpr int gloo_tag(int channel, Tag tag, std::size_t length) {
  constexpr unsigned hash_bits = 10;
  constexpr unsigned phase_bits = 2;
  constexpr unsigned operation_bits = 10;
  const auto hash = (std::uint64_t{length} * 0x9e3779b97f4a7c15U) >> (64 - hash_bits);
  auto bits = static_cast<std::uint64_t>(channel);
  bits = bits << operation_bits | (tag.operation & ((1U << operation_bits) - 1));
  bits = bits << phase_bits | static_cast<std::uint64_t>(tag.phase);
  return static_cast<int>(bits << hash_bits | hash);
}

/// The channel of what ranks say to one another about channels; no other has its number.
inline constexpr int control_channel = max_channels - 1;

}  // namespace tutti::comm
