#pragma once
// One call on a channel, as backends and error messages see it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "comm/backend/transfer_error.h"
#include "flight/recorder.h"
#include "tutti/core/call_site.h"

namespace tutti::comm {

struct Operation {
  std::uint64_t number = 0;  ///< counts the calls of a channel; equal on all ranks
  std::string op_name;       ///< "all_reduce"
  std::string name;          ///< CallOptions::name
  std::chrono::milliseconds timeout{0};
  flight::EntryId entry{};  ///< in the flight record
  CallSite call_site{};     ///< in the program; not known where no user has called

  /// Counted from when this rank begins to wait.
  Deadline deadline() const {
    constexpr std::chrono::milliseconds longest = std::chrono::hours(24 * 365);  // keeps the sum from overflowing
    return Clock::now() + std::min(timeout, longest);
  }
  /// "barrier 'epoch' (operation 16)"
  std::string describe() const { return text() + ")"; }
  /// "barrier 'epoch' (operation 16, train.cpp:42)"
  std::string describe_with_call_site() const {
    return text() + (call_site.known() ? ", " + call_site.describe() : "") + ")";
  }

 private:
  std::string text() const {
    return op_name + (name.empty() ? "" : " '" + name + "'") + " (operation " + std::to_string(number);
  }
};

/// An operation under way: one deadline for all that it waits for. Not longer than the operation itself.
struct OperationDeadline {
  const Operation& operation;
  Deadline deadline = operation.deadline();
};

}  // namespace tutti::comm
