#pragma once
// The last call of a rank, readable by the other ranks of its node. A rank that waits reports it, because the awaited
// rank may be in another part of its program.
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "comm/backend/operation.h"

namespace tutti::comm {

/// The place of the call's entry in the flight record of its process, which readers open. Has one writer and any number
/// of readers, in any processes that map it. Zero-initialized memory is a valid object.
class LastOperation {
 public:
  void set(const Operation& operation);
  /// "barrier 'epoch' (operation 16, train.cpp:42), 11 s ago"; "none" before the first call.
  std::string describe(Deadline now) const;

 private:
  std::atomic<std::uint64_t> serial_;
  std::atomic<int> record_;
  std::atomic<pid_t> process_;
};

}  // namespace tutti::comm
