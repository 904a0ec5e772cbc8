#pragma once
// The states of a reducer's synchronization on this rank. No I/O. docs/algorithms.md has the table.

namespace tutti::sync {

enum class SyncState {
  idle,        ///< there is none
  refused,     ///< a call was refused: other ranks may wait in a synchronization that this rank has not entered
  open,        ///< the header is sent, the trailer is not
  closed,      ///< the trailer is sent; the result is not here
  abort_due,   ///< an exception occurred, and other ranks may wait in a synchronization that has no header of this rank
  abort_open,  ///< the same with the header sent: the trailer must say that this rank has aborted
  abort_closed,  ///< the same with the trailer sent: the result must not be used
};

enum class SyncEvent {
  refuse,  ///< step() or synchronize() was refused
  open,    ///< the header is sent
  close,   ///< the trailer is sent
  abort,   ///< an exception ended a backward pass that synchronizes, or left a scope whose synchronization is due
  end,     ///< the result is here, or the window was discarded
};

/// The state after `event`. Throws std::logic_error for an event that `state` excludes.
SyncState next_state(SyncState state, SyncEvent event);

/// Whether other ranks may wait for the header or trailer of this rank, which has aborted.
constexpr bool owes_abort(SyncState state) {
  return state == SyncState::abort_due || state == SyncState::abort_open;
}
/// Whether the result of the synchronization must not be used.
constexpr bool is_aborted(SyncState state) {
  return owes_abort(state) || state == SyncState::abort_closed;
}

}  // namespace tutti::sync
