#pragma once
// How ranks send their wait states to each other. flight/wait_graph.h finds the deadlock in them. No I/O.
#include <optional>
#include <string>

#include "flight/wait_graph.h"

namespace tutti::flight {

std::string to_text(const WaitState& state);
/// Returns nullopt for a text that to_text() cannot have written.
std::optional<WaitState> wait_state_from_text(const std::string& text);

}  // namespace tutti::flight
