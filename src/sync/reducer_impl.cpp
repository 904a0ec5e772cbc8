#include "sync/reducer_impl.h"

#include <ATen/Functions.h>

#include <utility>

#include "sync/check_same_model.h"
#include "sync/reproducible_rules.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti {

namespace {

/// `parameters`, if they are those of all ranks.
std::vector<NamedParameter> checked(std::vector<NamedParameter> parameters, const ReducerOptions& options,
                                    const Communicator& communicator) {
  sync::check_same_model(parameters, options, communicator);
  return parameters;
}

}  // namespace

Reducer::Impl::Impl(std::vector<NamedParameter> parameters, Communicator communicator, const ReducerOptions& options)
    : communicator_(std::move(communicator)),
      options_(options),
      parameters_(checked(std::move(parameters), options_, communicator_)),
      decision_(options_.policy, options_.reproducible),
      checker_(parameters_, options_.check_replicas),
      comparison_(options_.check_replicas, options_.batch_position),
      store_(parameters_, options_, communicator_),
      driver_(store_, options_, communicator_),
      tracker_(parameters_.trained, store_.plan(), mutex_, *this, options_.pass_error) {
  compare_also({});
}

void Reducer::Impl::enter_accumulate(const AccumulationStep& step) {
  finish_pending();
  if (is(GradientState::invalid) && !window_state_.scope()) discard_window();
  if (options_.reproducible)
    require_reproducible_scope(parameters_, step, store_.micro_batches() + 1, communicator_.size());
  parameters_.with_model_prefix([&] { window_state_.open_scope(step); });
  if (step.syncs) ++ended_windows_;
  // A rank that weighs its micro-batches may have other numbers of them than other ranks.
  if (step.weight != 1) comparison_.allow_different_batches();
}

void Reducer::Impl::leave_accumulate(bool unwinding) {
  // The scope stays open until its synchronization ends, because the weights are those of the scope.
  try {
    if (unwinding) {
      tracker_.fail_pass();
      abort_scope(driver_.is_refused() ? driver_.refusal()
                                       : "an exception left the accumulate() scope that ends its step");
      // Its synchronization may have run before.
      if (window_state_.scope()->syncs && is(GradientState::mean)) discard_window();
    } else {
      close_dangling_pass();
      window_state_.add_due_weight();
      try {
        check_gradients_cleared(window_state_.sync_due_at_close(), window_state_.sync_due_at_close());
      } catch (const UsageError& error) {
        abort_scope(error.what());
        throw;
      }
      // The ranks have been notified of a pass that an exception ended, if they wait.
      if (window_state_.sync_due_at_close() && !is(GradientState::invalid) && !driver_.is_aborted()) run_sync();
      if (options_.reproducible && !window_state_.scope()->syncs && !is(GradientState::invalid))
        store_.accumulate_micro_batch();
    }
  } catch (...) {
    window_state_.close_scope();
    throw;
  }
  window_state_.close_scope();
}

void Reducer::Impl::require_between_steps() {
  finish_pending();
  if (options_.reproducible) throw UsageError("local steps depend on the number of ranks: they are not reproducible");
  if (window_state_.sync_due_at_close() || !(window_state_.is_over() || window_state_.is_idle())) {
    throw UsageError(parameters_.model_prefix() +
                     "local steps must begin and end between optimizer steps, and this window already has backward "
                     "passes: call discard_accumulation() first if no step uses their gradients");
  }
}

void Reducer::Impl::set_local(bool local) {
  require_between_steps();
  discard_window();
  // Ranks may take different numbers of local steps, so the counters and the learned window length may differ. The
  // number of steps goes on; the caller makes it equal on all ranks again.
  const std::int64_t steps = window_state_.window().steps();
  window_state_.reset();
  window_state_.set_steps(steps);
  decision_.reset_learned();
  checker_.forget_values();
  comparison_.forget_last_step();
  comparison_.allow_different_batches();
  std::swap(communicator_, inactive_communicator_);
  local_ = local;
}

void Reducer::Impl::discard_unused_passes() {
  finish_pending();
  if (window_state_.sync_due_at_close()) {
    throw UsageError(parameters_.model_prefix() +
                     "local steps must begin and end between optimizer steps: an accumulate() scope is open, and its "
                     "step has not run");
  }
  if (!window_state_.is_idle()) discard_window();
}

void Reducer::Impl::synchronize() {
  finish_pending();
  throw_if_invalid();
  if (options_.reproducible) {
    throw UsageError(parameters_.model_prefix() +
                     "synchronize() in the middle of a window: a reproducible sum is computed at the window's end");
  }
  try {
    check_plan();
    check_gradients_cleared(false, true);
  } catch (const UsageError& error) {
    if (communicator_.size() > 1) driver_.refuse(error.what());  // the other ranks wait
    throw;
  }
  run_sync();
  window_state_.allow_early_step();
}

double Reducer::Impl::mean_over_ranks(double value) {
  finish_pending();
  const at::Tensor sum = at::scalar_tensor(value, at::kDouble);
  communicator_.all_reduce(sum, ReduceOp::sum, comm::internal_call("loss")).wait();
  return sum.item<double>() / communicator_.size();
}

void Reducer::Impl::prepare_step() {
  const bool was_aborted = is(GradientState::aborted);
  finish_pending();
  throw_if_invalid();
  if (was_aborted && !is(GradientState::aborted)) {
    throw UsageError(parameters_.model_prefix() +
                     "step after a backward pass of this window ended with an exception: its gradients are invalid on "
                     "all ranks. Call zero_grad() and run the window again");
  }
  window_state_.add_due_weight();
  try {
    check_before_step();
  } catch (const UsageError& error) {
    // The other ranks wait in a synchronization that this rank has not entered. synchronize() may still enter it.
    if (window_state_.sync_due_at_step() && communicator_.size() > 1) driver_.refuse(error.what());
    throw;
  }
  // The program has cleared the gradients, and no rank has used these parameters since.
  if ((window_state_.is_over() || is(GradientState::none)) && driver_.overflowed() && store_.all_zero())
    driver_.set_overflowed(false);
  if (!window_state_.sync_due_at_step()) return;
  if (!window_state_.scope()) {
    if (const auto expected = decision_.on_early_step()) {
      Logger(communicator_.rank())
          .info("step() ran after " + std::to_string(window_state_.window().length()) + " backward passes where " +
                std::to_string(*expected) + " were expected: synchronizing inside step()");
    }
    if (!local_) ++stats_.syncs_in_step;
  }
  run_sync();
}

void Reducer::Impl::warn_before_last_scope(const char* call, const char* effect) {
  if (!window_state_.first_early_call() || communicator_.rank() != 0) return;
  Logger(0).warning(parameters_.model_prefix() + call +
                    " outside of accumulate(), in a window whose last scope is still to come, " + effect);
}

void Reducer::Impl::set_loss_scale(double scale) {
  finish_pending();
  if (is_pending()) check_gradients_cleared(false);
  store_.set_loss_scale(scale, is_pending());
}

void Reducer::Impl::on_optimizer_step() {
  store_.drop_micro_batches();
  window_state_.step();
  comparison_.on_step();
}

void Reducer::Impl::set_check_replicas(bool check) {
  finish_pending();
  checker_.set_compares_values(check);
  comparison_.enable(check);
}

void Reducer::Impl::compare_also(std::vector<NamedParameter> parameters) {
  parameters.insert(parameters.begin(), parameters_.frozen.begin(), parameters_.frozen.end());
  comparison_.compare(std::move(parameters));
  for (sync::DeviceSamples* one : samples()) one->drop();  // so that the numbers of both are equal
}

void Reducer::Impl::clear(bool set_to_none) {
  window_state_.add_due_weight();
  if (window_state_.clearing() == sync::Clearing::nothing && !driver_.is_refused()) return;
  abort_refused_call();
  finish_pending();
  // The other ranks wait in the scope's synchronization if no pass of the scope ran it on this rank.
  if (window_state_.sync_due_at_clear() && communicator_.size() > 1) run_sync();
  clear_gradients(window_state_.clearing(), set_to_none);
}

void Reducer::Impl::discard_accumulation() {
  abort_refused_call();
  finish_pending();
  if (window_state_.sync_due_at_clear() && communicator_.size() > 1) run_sync();
  clear_gradients(sync::Clearing::window, true);
}

void Reducer::Impl::clear_gradients(sync::Clearing what, bool set_to_none) {
  store_.clear(set_to_none);
  driver_.set_overflowed(false);
  window_state_.on_clear(what, !set_to_none && communicator_.size() > 1);
  if (what == sync::Clearing::window) comparison_.on_clear();
}

void Reducer::Impl::discard_window() {
  throw_if_communicator_failed();
  store_.discard();
  driver_.end();
  window_state_.discard();
  comparison_.on_clear();
}

void Reducer::Impl::throw_if_invalid() const {
  throw_if_communicator_failed();
  if (is(GradientState::invalid))
    throw UsageError(parameters_.model_prefix() + "the gradients of this window are invalid (" +
                     window_state_.reason() + "): call zero_grad() and run the window again");
}

void Reducer::Impl::throw_if_communicator_failed() const {
  if (is(GradientState::invalid)) comm::GradientCommunicator(communicator_).throw_if_failed();
}

void Reducer::Impl::check_before_step() {
  check_plan();
  if (is(GradientState::aborted)) return;
  // Also for a rank without passes: other ranks have added theirs to the same gradients.
  check_gradients_cleared(true, window_state_.scope() && window_state_.sync_due_at_step());
  if (window_state_.scope()) return;
  if (is_pending() && options_.reproducible) {
    throw UsageError(parameters_.model_prefix() +
                     "step outside accumulate() in the middle of a window: a reproducible sum is computed at the "
                     "window's end");
  }
  if (window_state_.awaits_last_scope()) {
    throw UsageError(
        parameters_.model_prefix() +
        "step() or clipping outside of accumulate(), in a window whose last scope is still to come: the "
        "step would use a part of the window. Move clipping, step(), zero_grad() and the schedule's step() "
        "into the scope, where they act at the window's end. For a step on the passes so far, call "
        "synchronize() first");
  }
  if (!is_pending() && window_state_.window().syncs() == 0) {
    // A tensor that replaced a used mean counts as that mean, as before the step.
    store_.require_known(!window_state_.is_over());
  }
}

void Reducer::Impl::check_left_out_step() {
  if (!window_state_.leaves_out_passes()) return;
  check_gradients_cleared(false, true);
  if (!window_state_.leaves_out_passes()) return;
  throw UsageError(
      parameters_.model_prefix() +
      "step() in accumulate(), but backward() was outside of it: this scope does not end its window, so step() would "
      "do nothing, and zero_grad() would discard the gradients. Call backward() in the scope");
}

void Reducer::Impl::check_plan() const {
  for (int i = 0; i < static_cast<int>(parameters_.trained.size()); ++i) {
    checker_.check_trained(i);
    if (!tracker_.still_hooked(i)) on_hooks_lost(i);
  }
  checker_.check_frozen();
}

void Reducer::Impl::check_gradients_cleared(bool refuses_changes, bool begins_pass) {
  // The program may change a mean until the next pass adds to it.
  if (!is(GradientState::pending) && !(begins_pass && is(GradientState::mean))) return;
  const sync::ExternalClear cleared = store_.find_external_clear(window_state_.window(), refuses_changes);
  if (cleared == sync::ExternalClear::none) return;
  const bool in_place = cleared == sync::ExternalClear::zeroed;
  window_state_.on_clear(sync::Clearing::window, in_place && communicator_.size() > 1);
}

}  // namespace tutti
