// The checks of the reducer.
#include "sync/autograd_hooks.h"
#include "sync/reducer_impl.h"
#include "tutti/core/error.h"

namespace tutti {

void Reducer::Impl::throw_if_invalid() const {
  if (window_state_.is(sync::GradientState::invalid))
    throw UsageError(parameters_.model_prefix() + "the gradients of this window are invalid (" + window_state_.reason() +
                     "): call zero_grad() and run the window again");
}

void Reducer::Impl::throw_if_peer_failed() const {
  if (communicator_.failed() && window_state_.is(sync::GradientState::invalid))
    throw PeerError(parameters_.model_prefix() + window_state_.reason(), {});
}

void Reducer::Impl::check_before_step() {
  check_plan();
  if (window_state_.is(sync::GradientState::aborted)) return;
  // Also for a rank without passes: other ranks have added theirs to the same gradients.
  check_gradients_cleared(true, window_state_.scope() && window_state_.sync_due_at_step());
  if (window_state_.scope()) return;
  if (window_state_.window().pending() > 0) {
    if (options_.reproducible) {
      throw UsageError(parameters_.model_prefix() +
                       "step outside accumulate() in the middle of a window: a reproducible sum is computed at the "
                       "window's end");
    }
    checker_.check_unchanged();
  } else if (window_state_.window().syncs() == 0) {
    check_gradients_are_known();
  }
}

void Reducer::Impl::check_plan() const {
  for (int i = 0; i < static_cast<int>(parameters_.trained.size()); ++i) {
    checker_.check_trained(i);
    const NamedParameter& parameter = parameters_.trained[i];
    if (!hooks_->still_hooked(i, parameter.tensor))
      throw sync::changed_after_prepare(parameter, "its node in the graph was replaced");
  }
  checker_.check_frozen();
}

// Detects changes of the window's gradients by the program. If all are cleared, their weights are dropped too. Any
// other change has no defined mean.
void Reducer::Impl::check_gradients_cleared(bool refuses_changes, bool begins_pass) {
  // The program may change a mean until the next pass adds to it.
  if (!window_state_.is(sync::GradientState::pending) && !(begins_pass && window_state_.is(sync::GradientState::mean)))
    return;
  const sync::ExternalClear cleared = store_.find_external_clear(window_state_.window(), refuses_changes);
  if (cleared == sync::ExternalClear::none) return;
  window_state_.on_external_clear(cleared == sync::ExternalClear::zeroed && communicator_.size() > 1);
}

void Reducer::Impl::check_gradients_are_known() const {
  // A tensor that replaced a used mean counts as that mean, as before the step.
  const auto foreign = store_.foreign(!window_state_.is_over());
  if (!foreign) return;
  throw UsageError("the gradient of " + *foreign +
                   " was not produced by a synchronized backward pass: call synchronize() before step");
}

}  // namespace tutti
