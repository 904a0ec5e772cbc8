#pragma once
// One call on a communicator, as backends and error messages see it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "comm/backend/transfer_error.h"
#include "core/job_ranks.h"
#include "flight/call_text.h"
#include "flight/layout.h"
#include "tutti/detail/core/call_site.h"

namespace tutti::comm {

/// Longer timeouts are shortened to it, so that the sum with a time does not overflow.
inline constexpr std::chrono::milliseconds longest_timeout = std::chrono::hours(24 * 365);

struct Operation {
  std::uint64_t number = 0;  ///< counts the calls on a communicator; equal on all ranks
  std::string op_name;       ///< "all_reduce"
  std::string name;          ///< CallOptions::name
  std::chrono::milliseconds timeout{0};
  flight::EntryId entry{};  ///< in the flight record
  CallSite call_site{};     ///< in the user's program; unknown for calls that the library makes
  JobRanks job_ranks{};     ///< of the group, for texts

  /// The deadline of a wait that starts now.
  Deadline deadline() const { return Clock::now() + std::min(timeout, longest_timeout); }
  /// "barrier 'epoch' (operation 16)"
  std::string describe() const { return flight::describe_call(op_name, name, number); }
  /// "barrier 'epoch' (operation 16, train.cpp:42)"
  std::string describe_with_call_site() const {
    return flight::describe_call(op_name, name, number, call_site.describe());
  }
};

/// An operation with one deadline for all of its waits. The operation must outlive it.
struct OperationDeadline {
  const Operation& operation;
  Deadline deadline = operation.deadline();
};

}  // namespace tutti::comm
