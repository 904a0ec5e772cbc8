#include "process_group/reconfigure_handle.h"

#include <algorithm>
#include <sstream>
#include <tuple>

#include "tutti/core/error.h"

namespace tutti::process_group {
namespace {

constexpr const char* marker = "tutti";
constexpr const char* no_generation = "new";

std::string quoted_begin(const std::string& text) {
  constexpr std::size_t longest = 20;  // the end of a handle is a key
  return "\"" + text.substr(0, longest) + (text.size() > longest ? "...\"" : "\"");
}

std::vector<std::string> sorted(const std::unordered_set<std::string>& set) {
  std::vector<std::string> handles(set.begin(), set.end());
  const auto order = [](const std::string& text) {
    const auto handle = parse_handle(text);
    return std::tuple(!handle.generation, handle.rank, text);
  };
  std::ranges::sort(handles, {}, order);
  return handles;
}

}  // namespace

std::string to_text(const ReconfigureHandle& handle) {
  return std::string(marker) + " " + std::to_string(handle.rank) + " " +
         (handle.generation ? std::to_string(*handle.generation) : no_generation) + " " + handle.address;
}

ReconfigureHandle parse_handle(const std::string& text) {
  std::istringstream words(text);
  std::string begin;
  std::string generation;
  ReconfigureHandle handle;
  words >> begin >> handle.rank >> generation;
  words.ignore(1);
  std::getline(words, handle.address);
  if (generation != no_generation) {
    std::istringstream number(generation);
    std::int64_t value = 0;
    if (number >> value && number.eof()) handle.generation = value;
  }
  const bool has_generation = handle.generation || generation == no_generation;
  if (begin != marker || handle.rank < 0 || !has_generation || handle.address.empty()) {
    throw UsageError("reconfigure: " + quoted_begin(text) +
                     " is no handle of the backend tutti. get_reconfigure_handle returns one.");
  }
  return handle;
}

std::vector<std::string> ordered_handles(const HandleList& list) {
  const auto* set = std::get_if<std::unordered_set<std::string>>(&list);
  auto handles = set != nullptr ? sorted(*set) : std::get<std::vector<std::string>>(list);
  if (handles.empty()) throw UsageError("reconfigure: there are no handles. Pass one for each rank of the new group.");
  for (auto handle = handles.begin(); handle != handles.end(); ++handle) {
    (void)parse_handle(*handle);
    const auto equal = std::find(handles.begin(), handle, *handle);
    if (equal == handle) continue;
    throw UsageError("reconfigure: the handles of the ranks " + std::to_string(equal - handles.begin()) + " and " +
                     std::to_string(handle - handles.begin()) + " are equal. Each rank has one of its own.");
  }
  return handles;
}

std::string describe_members(const std::vector<std::string>& handles, const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) {
    const auto handle = parse_handle(handles.at(static_cast<std::size_t>(rank)));
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
    text += handle.generation ? " (before: rank " + std::to_string(handle.rank) + ")" : std::string(" (new)");
  }
  return text;
}

}  // namespace tutti::process_group
