#include "comm/standstill/stand.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/engine/describe.h"

namespace tutti::comm {
namespace {

using nlohmann::json;

/// The members that have not made the call.
std::vector<int> absent_from(const Stand::Wait& wait, const Stand& stand, const std::vector<Stand>& by_rank) {
  std::vector<int> absent;
  for (const int member : stand.channels.at(wait.channel).members) {
    const auto& channels = by_rank.at(static_cast<std::size_t>(member)).channels;
    const auto found = channels.find(wait.channel);
    if (found == channels.end() || found->second.calls <= wait.number) absent.push_back(member);
  }
  return absent;
}

}  // namespace

std::string Stand::to_text() const {
  json all{{"changes", changes}, {"waits", json::array()}, {"channels", json::object()}};
  for (const Wait& wait : waits) all["waits"].push_back({wait.channel, wait.number, wait.text});
  for (const auto& [name, channel] : channels) all["channels"][name] = {channel.calls, channel.members};
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<Stand> Stand::from_text(const std::string& text) {
  try {
    const json all = json::parse(text);
    Stand stand{.waits = {}, .channels = {}, .changes = all.at("changes")};
    for (const auto& wait : all.at("waits")) stand.waits.push_back({wait.at(0), wait.at(1), wait.at(2)});
    for (const auto& [name, channel] : all.at("channels").items()) {
      stand.channels[name] = {.calls = channel.at(0), .members = channel.at(1)};
    }
    for (const Wait& wait : stand.waits) (void)stand.channels.at(wait.channel);
    return stand;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::optional<std::string> standstill_of(const std::vector<Stand>& by_rank) {
  struct Group {
    Stand::Wait wait;
    std::vector<int> ranks;
    std::vector<int> absent;
  };
  std::vector<Group> groups;
  const auto size = static_cast<int>(by_rank.size());
  for (int rank = 0; rank < size; ++rank) {
    const Stand& stand = by_rank[static_cast<std::size_t>(rank)];
    if (stand.waits.empty()) return std::nullopt;
    for (const auto& wait : stand.waits) {
      for (const int member : stand.channels.at(wait.channel).members) {
        if (member < 0 || member >= size) return std::nullopt;
      }
      auto absent = absent_from(wait, stand, by_rank);
      if (absent.empty()) return std::nullopt;
      const auto same = std::ranges::find(groups, wait, &Group::wait);
      if (same == groups.end()) {
        groups.push_back({.wait = wait, .ranks = {rank}, .absent = std::move(absent)});
      } else {
        same->ranks.push_back(rank);
      }
    }
  }
  std::string text = "called on some ranks only: ";
  for (const Group& group : groups) {
    if (&group != &groups.front()) text += "; ";
    const bool one = group.ranks.size() == 1;
    text += describe_ranks(group.ranks) + (one ? " waits" : " wait") + " in " + group.wait.text + " of '" +
            group.wait.channel + "', which " + describe_ranks(group.absent) +
            (group.absent.size() == 1 ? " has" : " have") + " not called";
  }
  return text + ". No rank can go on.";
}

}  // namespace tutti::comm
