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
struct Stand {
  struct Channel {
    std::uint64_t calls = 0;   ///< that this rank has made
    std::vector<int> members;  ///< ranks of the job
  };
  struct Wait {
    std::string channel;
    std::uint64_t number = 0;
    std::string text;  ///< "barrier 'epoch' (operation 16, train.cpp:42)"
    bool operator==(const Wait&) const = default;
  };
  std::vector<Wait> waits;
  std::map<std::string, Channel> channels;
  std::uint64_t changes = 0;  ///< differs where the rank has gone on meanwhile

  std::string to_text() const;
  /// nullopt for a text that none has written.
  static std::optional<Stand> from_text(const std::string& text);
};

/// What to tell where none of the ranks can go on; nullopt where one may.
std::optional<std::string> standstill_of(const std::vector<Stand>& by_rank);

}  // namespace tutti::comm
