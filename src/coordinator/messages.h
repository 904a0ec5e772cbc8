#pragma once
// The bodies of messages that more than one place reads or writes. No I/O.
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/frame.h"
#include "coordinator/job.h"
#include "core/random.h"

namespace tutti::coordinator {

/// Of the frames. Ranks with another one are refused.
inline constexpr std::uint32_t wire_version = 3;

struct Hello {
  Member member{};
  Nonce key{};  ///< of a client while it lives: tells a connection that is made again from a second process
  std::uint64_t events_seen = 0;  ///< of the job's events, so that a connection made again continues there
  JobTimeouts timeouts{};
  bool has_known_format = true;  ///< false if wire_version differs: only `member` is read

  std::string frame() const;
  /// Throws DamagedFrame.
  static Hello from_body(std::string_view body);
};

/// Why a request failed.
enum class RequestError : std::uint8_t {
  usage,        ///< UsageError
  timed_out,    ///< TimeoutError with the ranks that are missing
  peer_failed,  ///< PeerError with the ranks that have failed or left
};

struct ErrorReply {
  RequestError error = RequestError::usage;
  std::vector<int> ranks{};
  std::string text{};

  std::string frame(std::uint64_t tag) const;
  static ErrorReply from_body(std::string_view body);
};

std::string frame_of(const FailedRanks& failed);
FailedRanks failed_ranks_from(std::string_view body);
std::string frame_of(const Deadlock& deadlock);
Deadlock deadlock_from(std::string_view body);

}  // namespace tutti::coordinator
