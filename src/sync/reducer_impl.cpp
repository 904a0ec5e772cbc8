#include "sync/reducer_impl.h"

#include <ATen/Functions.h>

#include <utility>

#include "sync/autograd_hooks.h"
#include "sync/check_same_model.h"
#include "sync/reducer_callbacks.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti {

namespace {

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

/// `parameters`, if they are those of all ranks.
std::vector<NamedParameter> checked(std::vector<NamedParameter> parameters, const ReducerOptions& options,
                                    const Communicator& communicator) {
  sync::check_same_model(parameters, options, communicator);
  return parameters;
}

}  // namespace

Reducer::Impl::Impl(std::vector<NamedParameter> parameters, Communicator communicator, const ReducerOptions& options)
    : communicator_(std::move(communicator)), options_(options),
      logger_(communicator_.rank()),
      parameters_(checked(std::move(parameters), options, communicator_)),
      checker_(parameters_, options.check_replicas),
      store_(parameters_, options_, communicator_),
      driver_(store_, options_, communicator_),
      decision_(options.policy, options.reproducible),
      fires_(static_cast<std::size_t>(parameters_.slots)),
      expected_fires_(static_cast<std::size_t>(parameters_.slots), 1) {
  handle_ = std::make_shared<Handle>(Handle{this});
  hooks_ = std::make_unique<sync::AutogradHooks>(
      tensors_of(parameters_.trained), [this](int parameter) { in_pass([&] { before_accumulate_grad(parameter); }); },
      [this](int parameter) { in_pass([&] { on_gradient_ready(parameter); }); });
}

Reducer::Impl::~Impl() {
  handle_->reducer = nullptr;
}

void Reducer::Impl::enter_accumulate(const AccumulationStep& step) {
  const std::lock_guard lock(mutex_);
  finish_pending();
  if (window_state_.is(sync::GradientState::invalid) && !window_state_.scope()) discard_window();
  if (options_.reproducible && step.sync_each_batch) {
    throw UsageError("sync_each_batch synchronizes each micro-batch alone, so a reproducible sum is not possible");
  }
  if (options_.reproducible && step.syncs && communicator_.size() > 1) store_.require_whole_block();
  with_model_prefix([&] { window_state_.open_scope(step); });
}

void Reducer::Impl::leave_accumulate(bool unwinding) {
  const std::lock_guard lock(mutex_);
  const auto abort_window = [this](const std::string& why) {
    if (!window_state_.sync_due_at_close() || window_state_.is(sync::GradientState::invalid)) return;
    window_state_.abort(why);
    driver_.abort();
    send_abort();
  };
  // The scope stays open until its synchronization ends, because the weights are those of the scope.
  try {
    if (unwinding) {
      abort_dangling_pass();
      abort_window(driver_.is_refused() ? driver_.refusal()
                                          : "an exception left the accumulate() scope that ends its step");
    } else {
      close_dangling_pass();
      if (!window_state_.is(sync::GradientState::invalid) && !window_state_.is(sync::GradientState::aborted)) {
        try {
          check_gradients_cleared(window_state_.sync_due_at_close(), window_state_.sync_due_at_close());
        } catch (const UsageError& error) {
          abort_window(error.what());
          throw;
        }
      }
      if (window_state_.sync_due_at_close() && !window_state_.is(sync::GradientState::invalid)) run_sync();
      if (options_.reproducible && !window_state_.scope()->syncs && !window_state_.is(sync::GradientState::invalid))
        store_.accumulate_micro_batch();
    }
  } catch (...) {
    window_state_.close_scope();
    throw;
  }
  window_state_.close_scope();
}

bool Reducer::Impl::is_idle() const {
  const std::lock_guard lock(mutex_);
  return !window_state_.scope() && !pass_.open && window_state_.is_idle();
}

void Reducer::Impl::enter_no_sync() {
  const std::lock_guard lock(mutex_);
  decision_.enter_no_sync();
}

void Reducer::Impl::leave_no_sync() {
  const std::lock_guard lock(mutex_);
  decision_.leave_no_sync();
}

void Reducer::Impl::set_local(bool local) {
  const std::lock_guard lock(mutex_);
  if (local == local_) return;
  finish_pending();
  if (options_.reproducible) throw UsageError("local steps depend on the number of ranks: they are not reproducible");
  if (window_state_.sync_due_at_close() || !window_state_.is_idle()) {
    throw UsageError(parameters_.model_prefix() +
                     "local steps must begin and end between optimizer steps: this window already has backward passes");
  }
  discard_window();
  // Ranks may take different numbers of local steps, so counters and the learned window length may differ.
  window_state_.reset();
  decision_.reset_learned();
  checker_.forget_values();
  std::swap(communicator_, inactive_communicator_);
  local_ = local;
}

void Reducer::Impl::set_check_replicas(bool check) {
  const std::lock_guard lock(mutex_);
  finish_pending();
  checker_.set_compares_values(check);
}

void Reducer::Impl::trigger_sync_in_backward() {
  const std::lock_guard lock(mutex_);
  decision_.trigger();
}

void Reducer::Impl::add_scope_weight() {
  const std::lock_guard lock(mutex_);
  with_model_prefix([&] { window_state_.add_scope_weight(); });
}

void Reducer::Impl::on_backward_error() noexcept {
  const std::lock_guard lock(mutex_);
  abort_dangling_pass();
  send_abort();
}

// Completes the synchronization in which the other ranks wait, without waiting for them.
void Reducer::Impl::send_abort() noexcept {
  if (!sync::owes_abort(driver_.state())) return;
  try {
    close_sync();
  } catch (const std::exception& error) {
    invalidate(error.what());
  }
}

void Reducer::Impl::synchronize() {
  const std::lock_guard lock(mutex_);
  finish_pending();
  throw_if_invalid();
  if (options_.reproducible) {
    throw UsageError(parameters_.model_prefix() +
                     "synchronize() in the middle of a window: a reproducible sum is computed at the window's end");
  }
  check_plan();
  check_gradients_cleared(false, true);
  run_sync();
}

void Reducer::Impl::prepare_step() {
  const std::lock_guard lock(mutex_);
  const bool was_aborted = window_state_.is(sync::GradientState::aborted);
  finish_pending();
  throw_if_invalid();
  if (was_aborted && !window_state_.is(sync::GradientState::aborted)) {
    throw UsageError(parameters_.model_prefix() +
                     "step after a backward pass of this window ended with an exception: its gradients are invalid on "
                     "all ranks. Call zero_grad() and run the window again");
  }
  try {
    check_before_step();
  } catch (const UsageError& error) {
    // The other ranks wait in a synchronization that this rank has not entered. synchronize() may still enter it.
    if (window_state_.sync_due_at_step() && communicator_.size() > 1) driver_.refuse(error.what());
    throw;
  }
  if (!window_state_.sync_due_at_step()) return;
  if (!window_state_.scope()) {
    if (const auto expected = decision_.on_early_step()) {
      logger_.info("step() ran after " + std::to_string(window_state_.window().passes()) + " backward passes where " +
                   std::to_string(*expected) + " were expected: synchronizing inside step()");
    }
    ++stats_.syncs_in_step;
  }
  run_sync();
}

double Reducer::Impl::mean_over_ranks(double value) {
  const std::lock_guard lock(mutex_);
  finish_pending();
  const at::Tensor sum = at::scalar_tensor(value, at::kDouble);
  communicator_.all_reduce(sum, ReduceOp::sum, comm::internal_call("loss")).wait();
  return sum.item<double>() / communicator_.size();
}

void Reducer::Impl::set_loss_scale(double scale) {
  const std::lock_guard lock(mutex_);
  if (scale == store_.loss_scale()) return;
  finish_pending();
  if (window_state_.window().pending() > 0) check_gradients_cleared(false);
  store_.set_loss_scale(scale, window_state_.window().pending() > 0);
}

void Reducer::Impl::on_optimizer_step() {
  const std::lock_guard lock(mutex_);
  store_.drop_micro_batches();
  window_state_.step();
}

void Reducer::Impl::clear(bool set_to_none) {
  const std::lock_guard lock(mutex_);
  if (window_state_.clearing() == sync::Clearing::nothing && !driver_.is_refused()) return;
  abort_refused_step();
  finish_pending();
  // The other ranks wait in the scope's synchronization if no pass of the scope ran it on this rank.
  if (window_state_.sync_due_at_clear() && communicator_.size() > 1) run_sync();
  clear_gradients(window_state_.clearing(), set_to_none);
}

void Reducer::Impl::discard_accumulation() {
  const std::lock_guard lock(mutex_);
  abort_refused_step();
  finish_pending();
  if (window_state_.sync_due_at_clear() && communicator_.size() > 1) run_sync();
  clear_gradients(sync::Clearing::window, true);
}

void Reducer::Impl::clear_gradients(sync::Clearing what, bool set_to_none) {
  store_.clear(set_to_none);
  window_state_.on_clear(what, !set_to_none && communicator_.size() > 1);
}

SyncStats Reducer::Impl::stats() const {
  const std::lock_guard lock(mutex_);
  SyncStats stats = stats_;
  stats.gradients_copied = store_.copied();
  return stats;
}

void Reducer::Impl::abort_refused_step() {
  if (!driver_.is_refused()) return;
  window_state_.abort(driver_.refusal());
  driver_.abort();
}

void Reducer::Impl::discard_window() {
  throw_if_peer_failed();
  store_.discard();
  window_state_.discard();
  driver_.end();
}

}  // namespace tutti
