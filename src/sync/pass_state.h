#pragma once
// The states of a backward pass over one reducer's parameters. No I/O. docs/algorithms.md has the table.
#include <stdexcept>

namespace tutti::sync {

enum class PassState {
  none,           ///< no pass has begun
  local,          ///< a pass that does not synchronize has begun
  synchronizing,  ///< a pass that synchronizes has begun
  joined,         ///< a pass that synchronizes has ended without reaching the parameters
};

enum class PassEvent {
  begin_local,          ///< the first gradient of a pass that does not synchronize
  begin_synchronizing,  ///< the first gradient of a pass that synchronizes
  join,                 ///< a pass that synchronizes has reached other parts of the model only
  end,                  ///< autograd has run the whole graph, or an exception ended the pass
};

/// The state after `event`. Throws std::logic_error for an event that `state` excludes.
constexpr PassState next_state(PassState state, PassEvent event) {
  if ((state == PassState::none) == (event == PassEvent::end))
    throw std::logic_error("reducer: an event that the state of the backward pass excludes");
  if (event == PassEvent::end) return PassState::none;
  if (event == PassEvent::join) return PassState::joined;
  return event == PassEvent::begin_local ? PassState::local : PassState::synchronizing;
}

}  // namespace tutti::sync
