// The methods of the reducer that save and restore a window.
#include "sync/reducer_impl.h"
#include "tutti/core/error.h"

namespace tutti {

StateDict Reducer::Impl::state_dict() {
  throw_if_invalid();
  if (tracker_.is_running()) throw UsageError("save_state() inside a backward pass: call it after it");
  close_dangling_pass();
  if (window_state_.is(sync::GradientState::aborted))
    throw UsageError("save_state() after a backward pass ended with an exception: call zero_grad() first");
  check_gradients_cleared(false, true);
  window_state_.add_due_weight();
  if (window_state_.scope() && !window_state_.can_be_saved()) {
    throw UsageError(
        "save_state() between accumulate() and its backward pass: call it before the scope or after backward");
  }
  if (store_.micro_batches() > 0) {
    throw UsageError("save_state() inside a window whose sum is reproducible: call it between optimizer steps");
  }
  StateDict state = window_state_.state_dict();
  decision_.save(state);
  state.set("overflowed", driver_.overflowed());
  store_.save(state);
  return state;
}

void Reducer::Impl::load_state_dict(const StateDict& state) {
  throw_if_communicator_failed();
  if (window_state_.scope() || tracker_.is_open())
    throw UsageError("load_state() inside accumulate() or a backward pass: call it before");
  // Reads all values before it changes any.
  sync::AccumulationWindowState loaded;
  loaded.load_state_dict(state);
  sync::SyncDecision decision = decision_;
  decision.load(state);
  const auto overflowed = state.get<bool>("overflowed");
  store_.check_state(state);

  discard_window();
  window_state_ = loaded;
  decision_ = decision;
  driver_.set_overflowed(overflowed);
  checker_.forget_values();
  comparison_.forget_last_step();
  store_.load(state);
  store_.record(is_pending());
}

}  // namespace tutti
