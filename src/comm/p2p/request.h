#pragma once
// A request to send or to receive one point-to-point message.
#include <chrono>
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

namespace tutti::comm {

inline constexpr int any_source = -1;

/// The header that precedes a message's bytes. Ranks send it in this layout.
struct MessageHeader {
  enum class Kind : std::uint32_t { message, close };
  Kind kind = Kind::message;
  std::int32_t tag = 0;
  std::uint64_t group = 0;   ///< the same number on all ranks of a group
  std::int32_t source = 0;   ///< rank in the group
  std::uint32_t unused = 0;  ///< no byte of it is left to chance
  std::uint64_t bytes = 0;   ///< behind the header
};

/// One call of a user, until it has completed. The thread that removes it from its queue completes it, once.
struct Request {
  std::string description;  ///< "receive (tag 3)"
  int peer = any_source;    ///< rank in the group
  int tag = 0;
  std::span<std::byte> memory;
  std::shared_ptr<const void> owner;  ///< of the memory
  std::chrono::milliseconds timeout{0};
  Deadline deadline;
  /// Whether nothing will come from there any more, for all that this rank can see.
  std::function<bool()> peer_has_exited;
  std::optional<Deadline> exited_since{};        ///< when that was seen first
  std::function<void(int source)> on_completed;  ///< a message has come
  /// Called once, with what went wrong or null, after which nothing touches the memory.
  std::function<void(std::exception_ptr failure)> mark_completed;

  std::string peer_name() const { return peer == any_source ? "any rank" : "rank " + std::to_string(peer); }
};
using RequestPtr = std::shared_ptr<Request>;

/// A completed request and its failure; null if it succeeded.
struct Completion {
  RequestPtr request;
  std::exception_ptr failure;
  int source = any_source;  ///< of the message that has come
};
using Completions = std::vector<Completion>;

}  // namespace tutti::comm
