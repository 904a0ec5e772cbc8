#pragma once
// What ranks send over a connection: a Hello, the acceptor's Verdict, and then frames. All numbers are in the byte
// order of the machines, which must be the same. Pure.
#include <cstddef>
#include <cstdint>

#include "comm/os/process.h"

namespace tutti::comm {

/// The first bytes of the rank that connects, after the proof of the job's secret where there is one.
struct Hello {
  Nonce nonce{};  ///< from the published address of the acceptor
  std::int64_t rank = 0;
};

/// The acceptor's answer to a Hello.
enum class Verdict : std::uint64_t {
  accepted = 1,
  duplicate,  ///< both ranks connect to each other: the connection of the lower rank is used
};

/// Larger messages are announced; the receiver pulls them once a receive matches.
inline constexpr std::uint64_t max_eager_bytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t max_message_bytes = std::uint64_t{1} << 48;

struct FrameHeader {
  enum class Kind : std::uint32_t {
    message = 1,  ///< followed by `bytes` bytes
    announce,     ///< a message of `bytes` bytes, which the sender calls `id`: 1, 2, ...
    pull,         ///< the receiver of `id` waits for its bytes
    payload,      ///< the bytes of `id`, which follow
    withdraw,     ///< the bytes of `id` will not follow
    refuse,       ///< the receiver of `id` expects `bytes` bytes, or has closed the channel (channel_closed)
    close,        ///< nothing more comes from this rank on the channel
  };
  static constexpr std::uint64_t channel_closed = ~std::uint64_t{0};

  Kind kind = Kind::message;
  std::uint32_t unused = 0;
  std::uint64_t channel = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;

  std::uint64_t bytes_behind() const { return kind == Kind::message || kind == Kind::payload ? bytes : 0; }
  /// False for a header that no rank sends.
  bool is_valid() const {
    if (unused != 0) return false;
    switch (kind) {
      case Kind::message:
        return bytes <= max_eager_bytes && id == 0;
      case Kind::announce:
      case Kind::payload:
        return bytes <= max_message_bytes && id != 0;
      case Kind::pull:
      case Kind::withdraw:
        return bytes == 0 && id != 0;
      case Kind::refuse:
        return (bytes <= max_message_bytes || bytes == channel_closed) && id != 0;
      case Kind::close:
        return bytes == 0 && id == 0;
    }
    return false;
  }
};
static_assert(sizeof(FrameHeader) == 40);

}  // namespace tutti::comm
