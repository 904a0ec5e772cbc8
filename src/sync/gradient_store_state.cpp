// Saves and restores the gradients of a window.
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "sync/gradient_store.h"
#include "tutti/core/error.h"

namespace tutti::sync {

void GradientStore::save(StateDict& state) const {
  state.set("total_weight", total_weight_);
  state.set("loss_scale", loss_scale_);
  for (int i = 0; i < static_cast<int>(parameters_.trained.size()); ++i) {
    if (!grad(i).defined()) continue;
    const std::string& name = parameters_.trained[i].name;
    const auto bucket = bucket_of(i);
    // Sparse gradients are saved dense, so that windows of several ranks can be added and any checkpoint reader
    // supports them.
    state.set("gradient." + name, bucket ? grad(i).detach() : grad(i).detach().to_dense());
    state.set("averaged." + name, bucket ? buckets_[*bucket] == BucketState::mean : sparse_.averaged(i - slots()));
  }
}

void GradientStore::check_state(const StateDict& state) const {
  (void)state.get<double>("total_weight");
  (void)state.get<double>("loss_scale");
  const StateDict gradients = state.part("gradient");
  for (const auto& [name, value] : gradients.values()) {
    const auto parameter = std::ranges::find(parameters_.trained, name, &NamedParameter::name);
    if (parameter == parameters_.trained.end()) {
      throw CheckpointError(
          "the saved window holds a gradient of '" + name +
          "', which this optimizer does not train: freeze and unfreeze parameters as the saved run did, "
          "and prepare them, before load_state()");
    }
    if (gradients.get<at::Tensor>(name).sizes() != parameter->tensor.sizes()) {
      throw CheckpointError("the saved gradient of '" + name + "' has another shape than the parameter");
    }
    (void)state.get<bool>("averaged." + name);
  }
}

void GradientStore::load(const StateDict& state) {
  total_weight_ = state.get<double>("total_weight");
  loss_scale_ = state.get<double>("loss_scale");
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) load_bucket(bucket, state);
  for (int i = 0; i < sparse_.count(); ++i) {
    const std::string& name = parameters_.trained[slots() + i].name;
    if (!state.contains("gradient." + name)) continue;
    sparse_.load(i, state.get<at::Tensor>("gradient." + name), state.get<bool>("averaged." + name));
  }
}

void GradientStore::load_bucket(std::size_t bucket, const StateDict& state) {
  const auto& members = plan().buckets[bucket].parameters;
  const auto is_mean = [&](int i) {
    const std::string name = "averaged." + parameters_.trained[i].name;
    return !state.contains(name) || state.get<bool>(name);
  };
  const bool all_means = std::ranges::all_of(members, is_mean);
  for (const int i : members) {
    const std::string name = "gradient." + parameters_.trained[i].name;
    if (!state.contains(name)) continue;
    buffer_.detach_views(i);
    at::Tensor slot = buffer_.slot(i);
    slot.copy_(state.get<at::Tensor>(name));
    // Buckets may have been different when this was saved: a bucket must hold means only or local shares only.
    if (!all_means && is_mean(i)) slot.mul_(share_factor(total_weight_));
    buffer_.alias(i);
    records_[i].aliased = true;
    records_[i].version = slot._version();
    buckets_[bucket] = all_means ? BucketState::mean : BucketState::local_share;
  }
}

}  // namespace tutti::sync
