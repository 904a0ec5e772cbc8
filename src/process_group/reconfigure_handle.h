#pragma once
// The handles that ranks exchange before ProcessGroupTutti::reconfigure(). No I/O.
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <variant>
#include <vector>

namespace tutti::process_group {

struct ReconfigureHandle {
  int rank = 0;                              ///< in the group so far
  std::optional<std::int64_t> generation{};  ///< of that group, 0 for the first; unset: the rank was in none
  std::string address{};                     ///< comm::address_of() its socket
};

std::string to_text(const ReconfigureHandle& handle);
/// Throws UsageError if `text` is no handle.
ReconfigureHandle parse_handle(const std::string& text);

/// As in c10d::ReconfigureOptions.
using HandleList = std::variant<std::unordered_set<std::string>, std::vector<std::string>>;

/// The handles by new rank: in the order of a vector; of a set first those of ranks that were in a group, by rank.
/// Throws UsageError if there is none, if two are equal, or if one is no handle.
std::vector<std::string> ordered_handles(const HandleList& handles);

/// "rank 1 (before: rank 2), rank 3 (new)", for ranks of the new group.
std::string describe_members(const std::vector<std::string>& handles, const std::vector<int>& ranks);

}  // namespace tutti::process_group
