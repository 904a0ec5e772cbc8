#pragma once
// The all_gather calls in progress. No I/O.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/key_values.h"

namespace tutti::coordinator {

class Gathers {
 public:
  /// A gather that is complete. The requests are in the order of the members.
  struct Complete {
    std::vector<RequestId> requests;
    std::vector<std::string> values;
  };
  /// `request.rank` must be one of `members`. A second contribution of a rank replaces the first one.
  std::optional<Complete> contribute(const RequestId& request, const std::string& topic,
                                     const std::vector<int>& members, std::string value);
  /// Withdraws the contribution. Returns the members that are missing; nullopt if the request is not waiting. Members
  /// that have withdrawn their contributions are missing only if all others are there: they may contribute again. So a
  /// gather is remembered until it is complete or one of its members ends.
  std::optional<std::vector<int>> cancel(const RequestId& request);
  /// Withdraws the rank's contributions. It has connected again, and makes those again whose values it still awaits.
  void withdraw(int rank);
  /// Ends all gathers with this member, because it can contribute no more. Returns the waiting requests of the others.
  std::vector<RequestId> end_with(int member);

 private:
  using Key = std::pair<std::string, std::vector<int>>;  // topic, members
  struct Contribution {
    std::uint64_t tag = 0;
    std::string value;
    bool is_waiting = true;  // false once it is withdrawn
  };
  std::map<Key, std::map<int, Contribution>> gathers_;
};

}  // namespace tutti::coordinator
