#include "coordinator/gathers.h"

#include <algorithm>

namespace tutti::coordinator {

std::optional<Gathers::Complete> Gathers::contribute(const RequestId& request, const std::string& topic,
                                                     const std::vector<int>& members, std::string value) {
  const auto gather = gathers_.try_emplace({topic, members}).first;
  auto& contributions = gather->second;
  contributions[request.rank] = {.tag = request.tag, .value = std::move(value)};
  const auto is_waiting = [&](int member) {
    const auto found = contributions.find(member);
    return found != contributions.end() && found->second.is_waiting;
  };
  if (!std::ranges::all_of(members, is_waiting)) return std::nullopt;
  Complete complete;
  for (const int member : members) {
    complete.requests.push_back({.rank = member, .tag = contributions.at(member).tag});
    complete.values.push_back(contributions.at(member).value);
  }
  gathers_.erase(gather);
  return complete;
}

std::optional<std::vector<int>> Gathers::cancel(const RequestId& request) {
  for (auto gather = gathers_.begin(); gather != gathers_.end(); ++gather) {
    auto& [key, contributions] = *gather;
    const auto found = contributions.find(request.rank);
    const bool is_request = found != contributions.end() && found->second.tag == request.tag;
    if (!is_request || !found->second.is_waiting) continue;
    std::vector<int> missing;
    std::vector<int> withdrawn;
    for (const int member : key.second) {
      const auto other = contributions.find(member);
      if (other == contributions.end()) missing.push_back(member);
      if (other != contributions.end() && !other->second.is_waiting) withdrawn.push_back(member);
    }
    found->second = {.tag = request.tag, .value = "", .is_waiting = false};
    return missing.empty() ? withdrawn : missing;
  }
  return std::nullopt;
}

void Gathers::withdraw(int rank) {
  for (auto& [key, contributions] : gathers_) {
    if (const auto found = contributions.find(rank); found != contributions.end()) found->second.is_waiting = false;
  }
}

std::vector<RequestId> Gathers::end_with(int member) {
  std::vector<RequestId> ended;
  std::erase_if(gathers_, [&](const auto& gather) {
    const auto& [key, contributions] = gather;
    if (std::ranges::find(key.second, member) == key.second.end()) return false;
    for (const auto& [rank, contribution] : contributions) {
      if (rank != member && contribution.is_waiting) ended.push_back({.rank = rank, .tag = contribution.tag});
    }
    return true;
  });
  return ended;
}

}  // namespace tutti::coordinator
