// The methods of the reducer that save and restore a window.
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "sync/gradient_buffer.h"
#include "sync/gradient_sync.h"
#include "sync/pairwise_accumulator.h"
#include "sync/reducer_impl.h"
#include "sync/sparse_gradients.h"
#include "tutti/core/error.h"

namespace tutti {

StateDict Reducer::Impl::state_dict() const {
  const std::lock_guard lock(mutex_);
  throw_if_invalid();
  if (pass_.open && !pass_.tasks.empty()) throw UsageError("save_state() inside a backward pass: call it after it");
  if (window_state_.is(sync::GradientState::aborted))
    throw UsageError("save_state() after a backward pass ended with an exception: call zero_grad() first");
  if (window_state_.scope() && !window_state_.can_be_saved()) {
    throw UsageError(
        "save_state() between accumulate() and its backward pass: call it before the scope or after backward");
  }
  if (pairwise_accumulator_->micro_batches() > 0) {
    throw UsageError("save_state() inside a window whose sum is reproducible: call it between optimizer steps");
  }
  StateDict state = window_state_.state_dict();
  decision_.save(state);
  state.set("overflowed", overflowed_);
  state.set("total_weight", last_total_weight_);
  state.set("loss_scale", loss_scale_);
  for (int i = 0; i < count(); ++i) {
    const at::Tensor& grad = parameters_.trained[i].tensor.grad();
    if (!grad.defined()) continue;
    state.set("gradient." + parameters_.trained[i].name, grad.detach());
    state.set("averaged." + parameters_.trained[i].name, buckets_[buffer_->plan().slots[i].bucket].averaged);
  }
  for (int i = 0; i < sparse_->count(); ++i) {
    if (!sparse_->gradient(i).defined()) continue;
    const std::string& name = parameters_.trained[count() + i].name;
    // Dense, so that windows of several ranks can be added and any checkpoint reader supports it.
    state.set("gradient." + name, sparse_->gradient(i).detach().to_dense());
    state.set("averaged." + name, sparse_->averaged(i));
  }
  return state;
}

void Reducer::Impl::load_state_dict(const StateDict& state) {
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  if (window_state_.scope() || pass_.open)
    throw UsageError("load_state() inside accumulate() or a backward pass: call it before");
  // Reads all values before it changes any.
  sync::AccumulationWindowState loaded;
  loaded.load_state_dict(state);
  sync::SyncDecision decision = decision_;
  decision.load(state);
  const auto overflowed = state.get<bool>("overflowed");
  const auto total_weight = state.get<double>("total_weight");
  const auto loss_scale = state.get<double>("loss_scale");
  const StateDict gradients = state.part("gradient");
  for (const auto& [name, value] : gradients.values()) {
    const auto parameter = std::ranges::find(parameters_.trained, name, &NamedParameter::name);
    if (parameter == parameters_.trained.end()) {
      throw CheckpointError("the saved window holds a gradient of '" + name + "', which this optimizer does not train");
    }
    if (gradients.get<at::Tensor>(name).sizes() != parameter->tensor.sizes()) {
      throw CheckpointError("the saved gradient of '" + name + "' has another shape than the parameter");
    }
    (void)state.get<bool>("averaged." + name);
  }

  discard_window();
  window_state_ = loaded;
  decision_ = decision;
  overflowed_ = overflowed;
  last_total_weight_ = total_weight;
  loss_scale_ = loss_scale;
  checker_.forget_values();
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    load_bucket(static_cast<int>(bucket), state);
  }
  for (int i = 0; i < sparse_->count(); ++i) {
    const std::string& name = parameters_.trained[count() + i].name;
    if (!state.contains("gradient." + name)) continue;
    sparse_->load(i, state.get<at::Tensor>("gradient." + name), state.get<bool>("averaged." + name));
  }
  hash_pending_gradients();
}

void Reducer::Impl::load_bucket(int bucket, const StateDict& state) {
  const auto& members = buffer_->plan().buckets[bucket].parameters;
  const auto is_averaged = [&](int i) {
    const std::string name = "averaged." + parameters_.trained[i].name;
    return !state.contains(name) || state.get<bool>(name);
  };
  const bool averaged = std::ranges::all_of(members, is_averaged);
  for (const int i : members) {
    const std::string name = "gradient." + parameters_.trained[i].name;
    if (!state.contains(name)) continue;
    buffer_->detach_views(i);
    at::Tensor slot = buffer_->slot(i);
    slot.copy_(state.get<at::Tensor>(name));
    // Buckets may have been different when this was saved: a bucket must hold means only or local shares only.
    if (!averaged && is_averaged(i)) slot.mul_(last_total_weight_ * loss_scale_ / communicator_.size());
    buffer_->alias(i);
    states_[i].aliased = true;
    states_[i].version = slot._version();
    buckets_[bucket].averaged = averaged;
  }
}

}  // namespace tutti
