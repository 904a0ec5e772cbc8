#pragma once
// The calls that blocked ranks wait in, and whether any rank can continue. No I/O.
//
// Calls on a communicator are matched by their operation numbers. There is a deadlock if every calling thread of every
// rank waits in a call that some member of its communicator has not made. That member is blocked in another call, so no
// call can complete: one was made on some ranks only.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tutti::comm {

/// The state of one rank whose calling threads are all blocked.
struct WaitState {
  struct CommunicatorCalls {
    std::uint64_t calls = 0;   ///< the number of calls that this rank has made
    std::vector<int> members;  ///< global ranks
  };
  struct PendingCall {
    std::string communicator;
    std::uint64_t number = 0;
    std::string text;  ///< "barrier 'epoch' (operation 16, train.cpp:42)"
    bool operator==(const PendingCall&) const = default;
  };
  std::vector<PendingCall> pending_calls;
  std::map<std::string, CommunicatorCalls> communicators;
  std::uint64_t changes = 0;  ///< CallerThreads::changes(): differs if the rank has continued in between

  std::string to_text() const;
  /// Returns nullopt for a text that to_text() cannot have written.
  static std::optional<WaitState> from_text(const std::string& text);
};

/// Returns the error text if no rank can continue; nullopt if some rank may continue.
std::optional<std::string> find_deadlock(const std::vector<WaitState>& by_rank);

}  // namespace tutti::comm
