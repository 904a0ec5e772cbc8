// The checks of the reducer.
#include <ATen/core/Tensor.h>

#include "sync/autograd_hooks.h"
#include "sync/gradient_buffer.h"
#include "sync/gradient_sync.h"
#include "sync/reducer_impl.h"
#include "sync/sampled_hash.h"
#include "sync/sparse_gradients.h"
#include "tutti/core/error.h"

namespace tutti {

void Reducer::Impl::throw_if_invalid() const {
  if (window_state_.is(sync::GradientState::invalid))
    throw UsageError(parameters_.model_prefix() + "the gradients of this window are invalid (" + window_state_.reason() +
                     "): call zero_grad() and run the window again");
}

void Reducer::Impl::throw_if_failed() const {
  if (communicator_.failed() && window_state_.is(sync::GradientState::invalid))
    throw PeerError(parameters_.model_prefix() + window_state_.reason(), {});
}

void Reducer::Impl::require_reproducible() const {
  if (options_.gradient_codec)
    throw UsageError("a gradient_codec rounds between nodes only, so sums cannot be reproducible");
  for (const NamedParameter& parameter : parameters_.trained) {
    const at::ScalarType dtype = parameter.tensor.scalar_type();
    const bool cpu = parameter.tensor.is_cpu();
    if (!parameter.sparse && cpu && (dtype == at::kFloat || dtype == at::kDouble)) continue;
    throw UsageError("the gradients of " + quoted(parameter) + " are " +
                     (parameter.sparse ? "sparse"
                      : cpu            ? std::string("of type ") + toString(dtype)
                                       : "on a device") +
                     ": reproducible sums need dense float or double gradients in CPU memory");
  }
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

std::optional<std::string> Reducer::Impl::modified_gradient() const {
  const bool pending = window_state_.window().pending() > 0;
  for (int i = 0; i < count(); ++i) {
    const ParameterState& state = states_[i];
    if (!state.aliased) continue;
    if (!buffer_->aliased(i) || buffer_->slot(i)._version() != state.version) return quoted(parameters_.trained[i]);
    // Writes through .data(), as in LibTorch's clipping, do not change the version.
    if (pending && state.hash != sync::sampled_hash(buffer_->slot(i), hash_salt_)) return quoted(parameters_.trained[i]);
  }
  return sparse_->modified();
}

void Reducer::Impl::hash_pending_gradients() {
  if (window_state_.window().pending() == 0) return;
  // Samples other elements each time, so that a change of few elements is detected soon.
  ++hash_salt_;
  for (int i = 0; i < count(); ++i) {
    if (states_[i].aliased) states_[i].hash = sync::sampled_hash(buffer_->slot(i), hash_salt_);
  }
}

bool Reducer::Impl::all_zero() const {
  for (const NamedParameter& parameter : parameters_.trained) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined() && (parameter.sparse || gradient.count_nonzero().item<std::int64_t>() != 0)) return false;
  }
  return true;
}

// Detects changes of the window's gradients by the program. If all are cleared, their weights are dropped too. Any
// other change has no defined mean.
void Reducer::Impl::check_gradients_cleared(bool refuses_changes, bool begins_pass) {
  // The program may change a mean until the next pass adds to it.
  if (!window_state_.is(sync::GradientState::pending) && !(begins_pass && window_state_.is(sync::GradientState::mean)))
    return;
  std::optional<std::string> gone;
  bool some_left = false;
  for (int i = 0; i < static_cast<int>(parameters_.trained.size()); ++i) {
    const bool ours = i < count() ? states_[i].aliased : sparse_->is_tracked(i - count());
    if (!ours) continue;
    if (parameters_.trained[i].tensor.grad().defined()) {
      some_left = true;
    } else if (!gone) {
      gone = quoted(parameters_.trained[i]);
    }
  }
  const bool weighted = window_state_.window().weighting() == Weighting::weighted;
  const bool pending = window_state_.window().pending() > 0;
  if (gone && !some_left) {
    untrack_gradients();
    return window_state_.on_external_clear(false);
  }
  if (gone && weighted) {
    throw UsageError("the gradient of " + *gone +
                     " was cleared in the middle of a window while others were not, so the window's weights do not "
                     "apply to all gradients: call the optimizer's zero_grad(), which clears all of them");
  }
  const std::optional<std::string> modified = gone ? gone : modified_gradient();
  if (!modified || (!pending && !weighted)) return;
  if (!gone && all_zero()) {
    for (BucketState& bucket : buckets_) bucket.averaged = false;
    return window_state_.on_external_clear(communicator_.size() > 1);
  }
  if (!pending || !refuses_changes) return;
  throw UsageError("the gradient of " + *modified +
                   " was modified before it was synchronized, so step would use the mean of modified gradients: call "
                   "synchronize() before modifying gradients, or clip with the accelerator's clip_grad_norm_() or "
                   "clip_grad_value_(), which synchronize first");
}

std::optional<std::string> Reducer::Impl::foreign_gradient(bool or_replaced) const {
  for (int i = 0; i < static_cast<int>(parameters_.trained.size()); ++i) {
    if (!parameters_.trained[i].tensor.grad().defined()) continue;
    const bool ours = i < count() ? buffer_->aliased(i) : sparse_->is_tracked_gradient(i - count());
    const bool replaced = i < count() ? states_[i].aliased : sparse_->is_tracked(i - count());
    if (!ours && (or_replaced || !replaced)) return quoted(parameters_.trained[i]);
  }
  return std::nullopt;
}

void Reducer::Impl::check_gradients_are_known() const {
  // A tensor that replaced a used mean counts as that mean, as before the step.
  const auto foreign = foreign_gradient(!window_state_.is_over());
  if (!foreign) return;
  throw UsageError("the gradient of " + *foreign +
                   " was not produced by a synchronized backward pass: call synchronize() before step");
}

}  // namespace tutti
