#pragma once
// Where ranks stand that wait for one another, and whether any of them can go on. Pure.
//
// Calls of a channel meet by their numbers. Where every thread of every rank that calls anything waits in a call that
// some member of its channel has not made, and that member waits elsewhere, no call can ever be complete: one was made
// on some ranks only.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tutti::comm {

/// One rank, all of whose calling threads wait.
struct WaitState {
  struct CommunicatorCalls {
    std::uint64_t calls = 0;   ///< that this rank has made
    std::vector<int> members;  ///< ranks of the job
  };
  struct PendingCall {
    std::string communicator;
    std::uint64_t number = 0;
    std::string text;  ///< "barrier 'epoch' (operation 16, train.cpp:42)"
    bool operator==(const PendingCall&) const = default;
  };
  std::vector<PendingCall> pending_calls;
  std::map<std::string, CommunicatorCalls> communicators;
  std::uint64_t changes = 0;  ///< differs where the rank has gone on meanwhile

  std::string to_text() const;
  /// nullopt for a text that none has written.
  static std::optional<WaitState> from_text(const std::string& text);
};

/// What to tell where none of the ranks can go on; nullopt where one may.
std::optional<std::string> find_deadlock(const std::vector<WaitState>& by_rank);

}  // namespace tutti::comm
