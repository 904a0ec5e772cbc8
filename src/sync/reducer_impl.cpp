#include "sync/reducer_impl.h"

#include <ATen/Functions.h>

#include <bit>
#include <utility>

#include "sync/autograd_hooks.h"
#include "sync/gradient_buffer.h"
#include "sync/model_name.h"
#include "sync/parameter_watch.h"
#include "sync/partial_sums.h"
#include "sync/plan_agreement.h"
#include "sync/reducer_self.h"
#include "sync/round.h"
#include "sync/sparse_gradients.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/inner_call.h"

namespace tutti {

namespace {

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

/// A program that holds views of gradients in all of them will go on doing so.
constexpr int most_rounds_to_learn_order = 20;

}  // namespace

Reducer::Impl::Impl(std::vector<NamedParameter> parameters, Communicator channel, const ReducerOptions& options)
    : channel_(std::move(channel)), options_(options), logger_(channel_.rank()) {
  sync::agree_on_plan(parameters, options, channel_);
  std::vector<NamedParameter> sparse;
  for (NamedParameter& parameter : parameters) {
    const bool trained = parameter.tensor.requires_grad();
    (trained ? parameter.sparse ? sparse : parameters_ : frozen_).push_back(std::move(parameter));
  }
  states_.resize(parameters_.size());
  buffer_ = std::make_unique<sync::GradientBuffer>(tensors_of(parameters_), options_.buckets, channel_);
  buckets_.resize(buffer_->plan().buckets.size());
  if (options_.buckets.reorder && buckets_.size() > 1) rounds_to_learn_order_ = most_rounds_to_learn_order;
  sparse_ = std::make_unique<sync::SparseGradients>(sparse);
  partial_ = std::make_unique<sync::PartialSums>();
  parameters_.insert(parameters_.end(), sparse.begin(), sparse.end());
  if (options_.reproducible) require_reproducible();
  watch_ = std::make_unique<sync::ParameterWatch>(parameters_);
  frozen_watch_ = std::make_unique<sync::ParameterWatch>(frozen_);
  self_ = std::make_shared<Self>(Self{this});
  hooks_ = std::make_unique<sync::AutogradHooks>(
      tensors_of(parameters_), [this](int parameter) { in_pass([&] { before_accumulate(parameter); }); },
      [this](int parameter) { in_pass([&] { after_accumulate(parameter); }); });
}

Reducer::Impl::~Impl() {
  self_->reducer = nullptr;
}

void Reducer::Impl::enter_accumulate(const AccumulateStep& step) {
  const std::lock_guard lock(mutex_);
  settle();
  if (life_.is(sync::Gradients::lost) && !life_.scope()) forget_window();
  if (options_.reproducible && step.sync_each_batch) {
    throw UsageError("sync_each_batch adds micro-batches as they come, so a reproducible sum is not possible");
  }
  if (options_.reproducible && step.syncs && channel_.size() > 1) require_whole_block();
  named([&] { life_.open_scope(step); });
}

void Reducer::Impl::leave_accumulate(bool unwinding) {
  const std::lock_guard lock(mutex_);
  const auto give_up = [this](const std::string& why) {
    if (!life_.round_due_at_close() || life_.is(sync::Gradients::lost)) return;
    refused_.reset();
    life_.abandon(why);
    owes_round_ = true;
    tell_abandoned();
  };
  // The scope stays open until its round is done: the round's weights are the scope's.
  try {
    if (unwinding) {
      abandon_dangling_pass();
      give_up(refused_.value_or("an exception left the accumulate() scope that ends its step"));
    } else {
      close_dangling_pass();
      if (!life_.is(sync::Gradients::lost) && !life_.is(sync::Gradients::abandoned)) {
        try {
          notice_vanished(life_.round_due_at_close(), life_.round_due_at_close());
        } catch (const UsageError& error) {
          give_up(error.what());
          throw;
        }
      }
      if (life_.round_due_at_close() && !life_.is(sync::Gradients::lost)) run_round();
      if (options_.reproducible && !life_.scope()->syncs && !life_.is(sync::Gradients::lost)) put_micro_batch_apart();
    }
  } catch (...) {
    life_.close_scope();
    throw;
  }
  life_.close_scope();
}

bool Reducer::Impl::between_steps() const {
  const std::lock_guard lock(mutex_);
  return !life_.scope() && !pass_.open && life_.between_steps();
}

void Reducer::Impl::enter_no_sync() {
  const std::lock_guard lock(mutex_);
  ++no_sync_depth_;
  annotated_ = true;
}

void Reducer::Impl::leave_no_sync() {
  const std::lock_guard lock(mutex_);
  --no_sync_depth_;
}

void Reducer::Impl::set_local(bool local) {
  const std::lock_guard lock(mutex_);
  if (local == local_) return;
  settle();
  if (options_.reproducible) throw UsageError("local steps of ranks cannot be reproducible on another number of ranks");
  if (life_.round_due_at_close() || !life_.between_steps()) {
    throw UsageError(whose() +
                     "local steps begin and end between optimizer steps: this window has backward passes already");
  }
  forget_window();
  // Ranks may take different numbers of local steps, and learn different things from them.
  life_.begin_anew();
  automatic_ = AutomaticPolicy();
  hashes_.clear();
  std::swap(channel_, other_channel_);
  local_ = local;
}

void Reducer::Impl::set_check_replicas(bool check) {
  const std::lock_guard lock(mutex_);
  settle();
  options_.check_replicas = check;
  hashes_.clear();
}

void Reducer::Impl::trigger_sync_in_backward() {
  const std::lock_guard lock(mutex_);
  triggered_ = true;
}

void Reducer::Impl::count_backward() {
  const std::lock_guard lock(mutex_);
  named([&] { life_.weigh(); });
}

void Reducer::Impl::backward_failed() noexcept {
  const std::lock_guard lock(mutex_);
  abandon_dangling_pass();
  tell_abandoned();
}

// Sends what the others wait for, and waits for nothing itself.
void Reducer::Impl::tell_abandoned() noexcept {
  if (!life_.is(sync::Gradients::abandoned) || !owes_round_ || (round_ && round_->closed())) return;
  try {
    start_all_buckets_and_close();
  } catch (const std::exception& error) {
    lose(error.what());
  }
}

void Reducer::Impl::synchronize() {
  const std::lock_guard lock(mutex_);
  settle();
  throw_if_lost();
  if (options_.reproducible) {
    throw UsageError(whose() +
                     "synchronize() in the middle of a window: a reproducible sum is taken at the window's end");
  }
  check_plan();
  notice_vanished(false, true);
  run_round();
}

void Reducer::Impl::prepare_step() {
  const std::lock_guard lock(mutex_);
  const bool was_abandoned = life_.is(sync::Gradients::abandoned);
  settle();
  throw_if_lost();
  if (was_abandoned && !life_.is(sync::Gradients::abandoned)) {
    throw UsageError(whose() +
                     "step after a backward pass of this window ended with an exception: its gradients are lost on all "
                     "ranks. Call zero_grad() and run the window again");
  }
  try {
    check_before_step();
  } catch (const UsageError& error) {
    // The others wait in the round that this rank does not come to. It may still come: by synchronize().
    if (life_.round_due_at_step() && channel_.size() > 1) refused_ = error.what();
    throw;
  }
  if (!life_.round_due_at_step()) return;
  if (!life_.scope()) {
    if (options_.policy == SyncPolicy::automatic && !std::exchange(early_step_logged_, true)) {
      logger_.info("a step came after " + std::to_string(life_.window().passes()) + " backward passes where " +
                   std::to_string(automatic_.expected()) + " were expected: synchronizing inside step()");
    }
    ++stats_.rounds_in_step;
  }
  run_round();
}

double Reducer::Impl::mean_over_ranks(double value) {
  const std::lock_guard lock(mutex_);
  settle();
  const at::Tensor sum = at::scalar_tensor(value, at::kDouble);
  channel_.all_reduce(sum, ReduceOp::sum, comm::inner_call("loss")).wait();
  return sum.item<double>() / channel_.size();
}

void Reducer::Impl::set_loss_scale(double scale) {
  const std::lock_guard lock(mutex_);
  if (scale == loss_scale_) return;
  settle();
  // Gradients are linear: what waits from earlier passes of this window follows the new scale. Scales are powers of 2
  // as a rule, so that nothing is rounded.
  if (life_.window().pending() > 0) {
    notice_vanished(false);
    const bool changed = touched_gradient().has_value();
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (!buckets_[i].averaged) buffer_->bucket(static_cast<int>(i)).mul_(scale / loss_scale_);
    }
    sparse_->scale_shares(scale / loss_scale_);
    if (!changed) watch_pending();
  }
  loss_scale_ = scale;
}

void Reducer::Impl::stepped() {
  const std::lock_guard lock(mutex_);
  partial_->clear();
  life_.step();
}

void Reducer::Impl::clear(bool set_to_none) {
  const std::lock_guard lock(mutex_);
  if (life_.clearing() == sync::Clearing::nothing && !refused_) return;
  tell_refusal();
  settle();
  // Whoever did not synchronize in this scope's passes: the others wait for it.
  if (life_.round_due_at_clear() && channel_.size() > 1) run_round();
  clear_gradients(life_.clearing(), set_to_none);
}

void Reducer::Impl::abandon_window() {
  const std::lock_guard lock(mutex_);
  tell_refusal();
  settle();
  if (life_.round_due_at_clear() && channel_.size() > 1) run_round();
  clear_gradients(sync::Clearing::window, true);
}

void Reducer::Impl::clear_gradients(sync::Clearing what, bool set_to_none) {
  for (const NamedParameter& parameter : parameters_) {
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (set_to_none || parameter.sparse) {
      grad.reset();
    } else if (grad.defined()) {
      grad.zero_();
    }
  }
  for (int i = 0; i < count(); ++i) {
    adopt(i);  // zeros are known, wherever they lie
    states_[i].attached = buffer_->attached(i);
    if (!states_[i].attached) buffer_->release(i);
  }
  sparse_->forget();
  partial_->clear();
  for (BucketState& bucket : buckets_) bucket.averaged = false;
  life_.cleared(what, !set_to_none && channel_.size() > 1);
}

std::string Reducer::Impl::whose() const {
  const std::string trained = sync::models_of(parameters_);
  return trained.empty() ? sync::models_of(frozen_) : trained;
}

SyncStats Reducer::Impl::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Reducer::Impl::tell_refusal() {
  if (!refused_) return;
  life_.abandon(*std::exchange(refused_, std::nullopt));
  owes_round_ = true;
}

void Reducer::Impl::require_whole_block() const {
  const auto micro_batches = static_cast<std::uint64_t>(partial_->micro_batches() + 1);
  if (std::has_single_bit(micro_batches)) return;
  throw UsageError(
      whose() + "a window of " + std::to_string(micro_batches) + " micro-batches on each of " +
      std::to_string(channel_.size()) +
      " ranks: a reproducible sum on several ranks needs 1, 2, 4, 8, ... on each. Choose another number of "
      "micro-batches or ranks, and data that fill all windows");
}

void Reducer::Impl::put_micro_batch_apart() {
  std::vector<at::Tensor> flat;
  std::vector<bool> used(count());
  for (int i = 0; i < count(); ++i) {
    used[i] = parameters_[i].tensor.grad().defined();
    if (used[i]) {
      adopt(i);
    } else {
      buffer_->slot(i).zero_();
    }
  }
  for (std::size_t i = 0; i < buckets_.size(); ++i) flat.push_back(buffer_->bucket(static_cast<int>(i)));
  partial_->push(flat, used);
  for (int i = 0; i < count(); ++i) {
    parameters_[i].tensor.mutable_grad().reset();
    states_[i].attached = false;
  }
}

void Reducer::Impl::forget_window() {
  throw_if_poisoned();
  for (const NamedParameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  forget_gradients();
  life_.forget();
  owes_round_ = false;
}

void Reducer::Impl::forget_gradients() {
  sparse_->forget();
  partial_->clear();
  for (BucketState& bucket : buckets_) bucket = {};
  for (int i = 0; i < count(); ++i) {
    states_[i].attached = false;
    buffer_->release(i);
  }
}

}  // namespace tutti
