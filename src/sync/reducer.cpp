#include "tutti/sync/reducer.h"

#include <cmath>
#include <utility>

#include "sync/autograd_hooks.h"
#include "sync/bucket_tuner.h"
#include "sync/gradient_buffer.h"
#include "sync/parameter_watch.h"
#include "sync/plan_agreement.h"
#include "sync/reducer_life.h"
#include "sync/round.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

}  // namespace

Reducer::Reducer(std::vector<NamedParameter> parameters, Communicator channel, const ReducerOptions& options)
    : channel_(std::move(channel)), options_(options), logger_(channel_.rank()) {
  sync::agree_on_plan(parameters, options, channel_);
  for (NamedParameter& parameter : parameters) {
    (parameter.tensor.requires_grad() ? parameters_ : frozen_).push_back(std::move(parameter));
  }
  watch_ = std::make_unique<sync::ParameterWatch>(parameters_);
  frozen_watch_ = std::make_unique<sync::ParameterWatch>(frozen_);
  const std::vector<at::Tensor> tensors = tensors_of(parameters_);
  buffer_ = std::make_unique<sync::GradientBuffer>(tensors, options_.buckets, channel_);
  tuner_ = std::make_unique<sync::BucketTuner>(buffer_->sizes(), options_.buckets);
  states_.resize(parameters_.size());
  buckets_.resize(buffer_->plan().buckets.size());
  life_ = std::make_shared<Life>(Life{this});
  hooks_ = std::make_unique<sync::AutogradHooks>(
      tensors, [this](int parameter) { before_accumulate(parameter); },
      [this](int parameter) { after_accumulate(parameter); });
}

Reducer::~Reducer() {
  life_->reducer = nullptr;
}

void Reducer::enter_accumulate(const AccumulateStep& step) {
  const std::lock_guard lock(mutex_);
  if (scope_)
    throw UsageError("accumulate() inside accumulate() over the same parameters: close the outer scope first");
  if (!std::isfinite(step.weight) || step.weight < 0) {
    throw UsageError("accumulate() with weight " + std::to_string(step.weight) + ": a weight is 0 or positive");
  }
  settle();
  if (lost_) forget_window();
  scope_ = step;
  scope_weighed_ = false;
  round_due_ = step.syncs;
}

void Reducer::leave_accumulate(bool unwinding) {
  const std::lock_guard lock(mutex_);
  const bool due = std::exchange(round_due_, false);
  if (unwinding) {
    scope_.reset();
    if (!due || lost_) return;
    abandon("an exception left the accumulate() scope that ends its step");
    owes_round_ = true;
    return;
  }
  // The scope stays open until its round is done: the round's weights are the scope's.
  const auto close_scope = [this] { scope_.reset(); };
  try {
    close_dangling_pass();
    if (due && !lost_) run_round();
  } catch (...) {
    close_scope();
    throw;
  }
  close_scope();
}

void Reducer::enter_no_sync() {
  const std::lock_guard lock(mutex_);
  ++no_sync_depth_;
  annotated_ = true;
}

void Reducer::leave_no_sync() {
  const std::lock_guard lock(mutex_);
  --no_sync_depth_;
}

void Reducer::set_local(bool local) {
  const std::lock_guard lock(mutex_);
  if (local == local_) return;
  settle();
  if (round_due_ || (!consumed_ && window_.passes() > 0)) {
    throw UsageError("local steps begin and end between optimizer steps: this window has backward passes already");
  }
  forget_window();
  // Ranks may take different numbers of local steps, and learn different things from them.
  window_ = Window();
  automatic_ = AutomaticPolicy();
  hashes_.clear();
  last_seconds_.reset();
  std::swap(channel_, other_channel_);
  local_ = local;
}

void Reducer::trigger_sync_in_backward() {
  const std::lock_guard lock(mutex_);
  triggered_ = true;
}

void Reducer::count_backward() {
  const std::lock_guard lock(mutex_);
  if (!scope_ || scope_weighed_) return;
  scope_weighed_ = true;
  window_.weigh(scope_->weight);
}

void Reducer::backward_failed() noexcept {
  const std::lock_guard lock(mutex_);
  if (!abandoned_ || !owes_round_ || (round_ && round_->closed())) return;
  try {
    start_all_buckets_and_close();
  } catch (const std::exception& error) {
    lose(error.what());
  }
}

void Reducer::synchronize() {
  const std::lock_guard lock(mutex_);
  settle();
  throw_if_lost();
  check_plan();
  run_round();
}

void Reducer::prepare_step() {
  const std::lock_guard lock(mutex_);
  const bool was_abandoned = abandoned_.has_value();
  settle();
  throw_if_lost();
  if (was_abandoned && !abandoned_) {
    throw UsageError(
        "step after a backward pass of this window ended with an exception: its gradients are lost on all "
        "ranks. Call zero_grad() and run the window again");
  }
  check_plan();
  if (scope_) {
    if (std::exchange(round_due_, false)) run_round();
  } else if (window_.pending() > 0 || abandoned_) {
    // An abandoned window's gradients are not used: the others only wait to be told.
    if (!abandoned_ && options_.check_replicas) check_parameters_unchanged(watch_->hashes());
    if (!abandoned_) check_gradients_untouched();
    if (options_.policy == SyncPolicy::automatic && !std::exchange(early_step_logged_, true)) {
      logger_.info("a step came after " + std::to_string(window_.passes()) + " backward passes where " +
                   std::to_string(automatic_.expected()) + " were expected: synchronizing inside step()");
    }
    ++stats_.rounds_in_step;
    run_round();
  } else if (window_.rounds() == 0) {
    check_gradients_are_known();
  }
}

void Reducer::set_loss_scale(double scale) {
  const std::lock_guard lock(mutex_);
  if (scale == loss_scale_) return;
  settle();
  // Gradients are linear: what waits from earlier passes of this window follows the new scale. Scales are powers of 2
  // as a rule, so that nothing is rounded.
  for (std::size_t i = 0; i < buckets_.size() && window_.pending() > 0; ++i) {
    if (!buckets_[i].averaged) buffer_->bucket(static_cast<int>(i)).mul_(scale / loss_scale_);
  }
  loss_scale_ = scale;
}

void Reducer::stepped() {
  const std::lock_guard lock(mutex_);
  window_.restart(true);
  consumed_ = true;
}

void Reducer::clear(bool set_to_none) {
  const std::lock_guard lock(mutex_);
  if (scope_ && !consumed_ && !lost_) return;
  settle();
  for (int i = 0; i < count(); ++i) {
    at::Tensor& grad = parameters_[i].tensor.mutable_grad();
    if (set_to_none) {
      grad.reset();
    } else if (grad.defined()) {
      grad.zero_();
    }
    states_[i].attached = grad.defined() && buffer_->attached(i);
  }
  for (BucketState& bucket : buckets_) bucket.averaged = false;
  // A scope may have weighed without reaching a parameter: outside of it nothing is left, inside it goes on.
  if (!consumed_ || !scope_) window_.restart(false);
  // Cleared in place, gradients are defined still, but nothing of the last step is left in them.
  consumed_ = set_to_none;
  abandoned_.reset();
  if (!channel_.poisoned()) lost_.reset();
}

SyncStats Reducer::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Reducer::abandon(const std::string& reason) {
  if (!abandoned_) abandoned_ = reason;
}

void Reducer::forget_window() {
  throw_if_poisoned();
  for (const NamedParameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  for (BucketState& bucket : buckets_) bucket = {};
  for (ParameterState& state : states_) state.attached = false;
  window_.restart(false);
  consumed_ = true;
  abandoned_.reset();
  lost_.reset();
  owes_round_ = false;
}

void Reducer::throw_if_lost() const {
  if (lost_)
    throw UsageError("the gradients of this window are lost (" + *lost_ + "): call zero_grad() and run it again");
}

void Reducer::throw_if_poisoned() const {
  if (channel_.poisoned() && lost_) throw PeerFailure(*lost_, {});
}

void Reducer::check_plan() const {
  const auto fail = [](const std::string& name, const std::string& change) {
    throw UsageError("parameter '" + name + "' is not what it was when it was prepared: " + change +
                     ". Its gradients would not be synchronized: prepare the model again after changing it");
  };
  for (int i = 0; i < count(); ++i) {
    if (const auto change = watch_->change_of(i)) fail(parameters_[i].name, *change);
    if (!hooks_->still_hooked(i, parameters_[i].tensor))
      fail(parameters_[i].name, "its place in the graph was replaced");
  }
  for (std::size_t i = 0; i < frozen_.size(); ++i) {
    if (const auto change = frozen_watch_->change_of(static_cast<int>(i))) fail(frozen_[i].name, *change);
  }
}

void Reducer::check_gradients_untouched() const {
  for (int i = 0; i < count(); ++i) {
    if (!states_[i].attached) continue;
    if (buffer_->attached(i) && buffer_->slot(i)._version() == states_[i].version) continue;
    throw UsageError(
        "the gradient of '" + parameters_[i].name +
        "' was changed by hand before it was synchronized, so step would use the mean of changed gradients: "
        "call synchronize() before touching gradients");
  }
}

void Reducer::check_gradients_are_known() const {
  for (int i = 0; i < count(); ++i) {
    if (!parameters_[i].tensor.grad().defined() || buffer_->attached(i)) continue;
    throw UsageError("the gradient of '" + parameters_[i].name +
                     "' came from no backward pass that was synchronized: call synchronize() before step");
  }
}

void Reducer::check_parameters_unchanged(const std::vector<std::uint64_t>& now) const {
  if (hashes_.empty()) return;
  if (const auto changed = watch_->first_difference(hashes_, now)) {
    throw UsageError(
        "parameter '" + parameters_[*changed].name +
        "' changed between the backward passes of a step: it was stepped with gradients that have not been "
        "synchronized. Step with the optimizer that prepare() returned");
  }
}

bool Reducer::holds_foreign_gradients() const {
  for (int i = 0; i < count(); ++i) {
    if (parameters_[i].tensor.grad().defined() && !buffer_->attached(i)) return true;
  }
  return false;
}

}  // namespace tutti
