#include "sync/sync_state.h"

#include <optional>
#include <stdexcept>

namespace tutti::sync {

namespace {

std::optional<SyncState> find_next(SyncState state, SyncEvent event) {
  using enum SyncState;
  const bool entered = state != idle && state != refused;
  switch (event) {
    case SyncEvent::refuse:
      return entered ? state : refused;
    case SyncEvent::open:
      if (!entered) return open;
      if (state == abort_due) return abort_open;
      break;
    case SyncEvent::close:
      if (state == open) return closed;
      if (state == abort_open) return abort_closed;
      break;
    case SyncEvent::abort:
      if (!entered) return abort_due;
      return state == open ? abort_open : state == closed ? abort_closed : state;
    case SyncEvent::end:
      return idle;
  }
  return std::nullopt;
}

}  // namespace

SyncState next_state(SyncState state, SyncEvent event) {
  if (const auto next = find_next(state, event)) return *next;
  throw std::logic_error("reducer: an event that the state of the synchronization excludes");
}

}  // namespace tutti::sync
