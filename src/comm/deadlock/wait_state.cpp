#include "comm/deadlock/wait_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/backend/describe.h"

namespace tutti::comm {
namespace {

using nlohmann::json;

/// The members of the call's communicator that have not made the call.
std::vector<int> ranks_without_call(const WaitState::PendingCall& call, const WaitState& state,
                                    const std::vector<WaitState>& by_rank) {
  std::vector<int> absent;
  for (const int member : state.communicators.at(call.communicator).members) {
    const auto& communicators = by_rank.at(static_cast<std::size_t>(member)).communicators;
    const auto found = communicators.find(call.communicator);
    if (found == communicators.end() || found->second.calls <= call.number) absent.push_back(member);
  }
  return absent;
}

}  // namespace

std::string WaitState::to_text() const {
  json all{{"changes", changes}, {"waits", json::array()}, {"channels", json::object()}};
  for (const PendingCall& call : pending_calls) all["waits"].push_back({call.communicator, call.number, call.text});
  for (const auto& [name, communicator] : communicators)
    all["channels"][name] = {communicator.calls, communicator.members};
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<WaitState> WaitState::from_text(const std::string& text) {
  try {
    const json all = json::parse(text);
    WaitState state{.pending_calls = {}, .communicators = {}, .changes = all.at("changes")};
    for (const auto& call : all.at("waits")) state.pending_calls.push_back({call.at(0), call.at(1), call.at(2)});
    for (const auto& [name, communicator] : all.at("channels").items()) {
      state.communicators[name] = {.calls = communicator.at(0), .members = communicator.at(1)};
    }
    for (const PendingCall& call : state.pending_calls) (void)state.communicators.at(call.communicator);
    return state;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::optional<std::string> find_deadlock(const std::vector<WaitState>& by_rank) {
  struct Group {
    WaitState::PendingCall call;
    std::vector<int> ranks;
    std::vector<int> absent;
  };
  std::vector<Group> groups;
  const auto size = static_cast<int>(by_rank.size());
  for (int rank = 0; rank < size; ++rank) {
    const WaitState& state = by_rank[static_cast<std::size_t>(rank)];
    if (state.pending_calls.empty()) return std::nullopt;
    for (const auto& call : state.pending_calls) {
      for (const int member : state.communicators.at(call.communicator).members) {
        if (member < 0 || member >= size) return std::nullopt;
      }
      auto absent = ranks_without_call(call, state, by_rank);
      if (absent.empty()) return std::nullopt;
      const auto same = std::ranges::find(groups, call, &Group::call);
      if (same == groups.end()) {
        groups.push_back({.call = call, .ranks = {rank}, .absent = std::move(absent)});
      } else {
        same->ranks.push_back(rank);
      }
    }
  }
  std::string text = "called on some ranks only: ";
  for (const Group& group : groups) {
    if (&group != &groups.front()) text += "; ";
    const bool one = group.ranks.size() == 1;
    text += describe_ranks(group.ranks) + (one ? " waits" : " wait") + " in " + group.call.text + " of '" +
            group.call.communicator + "', which " + describe_ranks(group.absent) +
            (group.absent.size() == 1 ? " has" : " have") + " not called";
  }
  return text + ". No rank can continue.";
}

}  // namespace tutti::comm
