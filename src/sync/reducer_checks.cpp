// What the reducer refuses to go on with.
#include "sync/autograd_hooks.h"
#include "sync/gradient_buffer.h"
#include "sync/parameter_watch.h"
#include "sync/reducer_impl.h"
#include "sync/round.h"
#include "sync/sparse_gradients.h"
#include "tutti/core/error.h"

namespace tutti {

void Reducer::Impl::throw_if_lost() const {
  if (lost_)
    throw UsageError("the gradients of this window are lost (" + *lost_ + "): call zero_grad() and run it again");
}

void Reducer::Impl::throw_if_poisoned() const {
  if (channel_.poisoned() && lost_) throw PeerFailure(*lost_, {});
}

void Reducer::Impl::require_reproducible() const {
  if (options_.comm_hook) throw UsageError("a comm_hook rounds between nodes only, so sums cannot be reproducible");
  for (const NamedParameter& parameter : parameters_) {
    const at::ScalarType dtype = parameter.tensor.scalar_type();
    const bool cpu = parameter.tensor.is_cpu();
    if (!parameter.sparse && cpu && (dtype == at::kFloat || dtype == at::kDouble)) continue;
    throw UsageError("the gradients of '" + parameter.name + "' are " +
                     (parameter.sparse ? "sparse"
                      : cpu            ? std::string("of type ") + toString(dtype)
                                       : "on a device") +
                     ": reproducible sums are of dense float or double gradients in CPU memory");
  }
}

void Reducer::Impl::check_before_step() const {
  check_plan();
  if (scope_ || abandoned_) return;
  if (window_.pending() > 0) {
    if (options_.reproducible) {
      throw UsageError("step outside accumulate() in the middle of a window: a reproducible sum is taken at its end");
    }
    if (options_.check_replicas) check_parameters_unchanged(watch_->hashes());
    check_gradients_untouched();
  } else if (window_.rounds() == 0) {
    check_gradients_are_known();
  }
}

void Reducer::Impl::check_plan() const {
  const auto fail = [](const std::string& name, const std::string& change) {
    throw UsageError("parameter '" + name + "' is not what it was when it was prepared: " + change +
                     ". Its gradients would not be synchronized: prepare the model again after changing it");
  };
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    if (const auto change = watch_->change_of(i)) fail(parameters_[i].name, *change);
    if (!hooks_->still_hooked(i, parameters_[i].tensor))
      fail(parameters_[i].name, "its place in the graph was replaced");
  }
  for (std::size_t i = 0; i < frozen_.size(); ++i) {
    if (const auto change = frozen_watch_->change_of(static_cast<int>(i))) fail(frozen_[i].name, *change);
  }
}

void Reducer::Impl::check_gradients_untouched() const {
  std::optional<std::string> touched = sparse_->touched();
  for (int i = 0; i < count() && !touched; ++i) {
    if (!states_[i].attached) continue;
    if (buffer_->attached(i) && buffer_->slot(i)._version() == states_[i].version) continue;
    touched = parameters_[i].name;
  }
  if (!touched) return;
  throw UsageError("the gradient of '" + *touched +
                   "' was changed by hand before it was synchronized, so step would use the mean of changed "
                   "gradients: call synchronize() before touching gradients");
}

std::optional<std::string> Reducer::Impl::foreign_gradient() const {
  for (int i = 0; i < count(); ++i) {
    if (parameters_[i].tensor.grad().defined() && !buffer_->attached(i)) return parameters_[i].name;
  }
  return sparse_->foreign();
}

void Reducer::Impl::check_gradients_are_known() const {
  const auto foreign = foreign_gradient();
  if (!foreign) return;
  throw UsageError("the gradient of '" + *foreign +
                   "' came from no backward pass that was synchronized: call synchronize() before step");
}

void Reducer::Impl::check_parameters_unchanged(const std::vector<std::uint64_t>& now) const {
  if (hashes_.empty()) return;
  if (const auto changed = watch_->first_difference(hashes_, now)) {
    throw UsageError(
        "parameter '" + parameters_[*changed].name +
        "' changed between the backward passes of a step: it was stepped with gradients that have not been "
        "synchronized. Step with the optimizer that prepare() returned");
  }
}

}  // namespace tutti
