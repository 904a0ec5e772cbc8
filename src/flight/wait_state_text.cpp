#include "flight/wait_state_text.h"

#include <nlohmann/json.hpp>

namespace tutti::flight {
using nlohmann::json;

std::string to_text(const WaitState& state) {
  json all{{"changes", state.changes}, {"waits", json::array()}, {"channels", json::object()}};
  for (const auto& call : state.pending_calls) all["waits"].push_back({call.communicator, call.number, call.text});
  for (const auto& [name, communicator] : state.communicators)
    all["channels"][name] = {communicator.calls, communicator.members};
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<WaitState> wait_state_from_text(const std::string& text) {
  try {
    const json all = json::parse(text);
    WaitState state{.pending_calls = {}, .communicators = {}, .changes = all.at("changes")};
    for (const auto& call : all.at("waits")) state.pending_calls.push_back({call.at(0), call.at(1), call.at(2)});
    for (const auto& [name, communicator] : all.at("channels").items()) {
      state.communicators[name] = {.calls = communicator.at(0), .members = communicator.at(1)};
    }
    for (const auto& call : state.pending_calls) (void)state.communicators.at(call.communicator);
    return state;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace tutti::flight
