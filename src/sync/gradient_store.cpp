#include "sync/gradient_store.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "sync/reproducible_rules.h"
#include "sync/sampled_hash.h"
#include "tutti/core/error.h"

namespace tutti::sync {

namespace {

std::vector<at::Tensor> tensors_with_slot(const ParameterSet& parameters) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < parameters.slots; ++i) tensors.push_back(parameters.trained[i].tensor);
  return tensors;
}

}  // namespace

GradientStore::GradientStore(const ParameterSet& parameters, const ReducerOptions& options,
                             const Communicator& communicator)
    : parameters_(parameters),
      communicator_(communicator),
      buffer_(tensors_with_slot(parameters), options.buckets, communicator),
      sparse_({parameters.trained.begin() + parameters.slots, parameters.trained.end()}),
      records_(static_cast<std::size_t>(parameters.slots)),
      buckets_(buffer_.plan().buckets.size()) {
  if (!options.reproducible) return;
  require_reproducible(parameters, options);
  accumulator_.emplace();
}

std::optional<std::size_t> GradientStore::bucket_of(int parameter) const {
  if (parameter >= slots()) return std::nullopt;
  return plan().slots[parameter].bucket;
}

void GradientStore::begin_pass(bool window_is_pending) {
  // A tensor that replaced a synchronized gradient counts as synchronized; with pending passes it is a change.
  for (int i = 0; i < slots(); ++i) {
    if (!window_is_pending && records_[i].aliased && !buffer_.aliased(i)) {
      move_into_slot(i);
      records_[i].aliased = buffer_.aliased(i);  // false if the program cleared the gradient
    }
    if (!buffer_.aliased(i)) buffer_.detach_views(i);
  }
  if (!window_is_pending) sparse_.untrack_cleared();
}

void GradientStore::to_local_share(int parameter) {
  if (const auto bucket = bucket_of(parameter)) return bucket_to_local_share(*bucket);
  sparse_.to_local_share(parameter - slots(), share_factor(total_weight_));
}

void GradientStore::to_local_share_in_flight(std::size_t bucket, double total_weight) {
  scale_bucket(bucket, share_factor(total_weight));
  buckets_[bucket] = BucketState::written_in_flight;
}

void GradientStore::on_gradient(int parameter) {
  if (parameter >= slots()) return sparse_.on_gradient(parameter - slots());
  move_into_slot(parameter);
  records_[parameter].aliased = buffer_.aliased(parameter);
}

void GradientStore::record(bool window_is_pending) {
  // Samples other elements each time, so that a change of few elements is detected soon.
  if (window_is_pending) ++hash_salt_;
  for (int i = 0; i < slots(); ++i) {
    GradientRecord& record = records_[i];
    if (!record.aliased) continue;
    record.version = buffer_.slot(i)._version();
    if (window_is_pending) record.hash = sampled_hash(buffer_.slot(i), hash_salt_);
  }
}

std::optional<std::string> GradientStore::tracked() const {
  for (int i = 0; i < slots(); ++i) {
    if (records_[i].aliased && grad(i).defined()) return quoted(parameters_.trained[i]);
  }
  return sparse_.carried_over();
}

const at::Tensor& GradientStore::fill_bucket(std::size_t bucket) {
  bucket_to_local_share(bucket);
  for (const int parameter : plan().buckets[bucket].parameters) {
    if (grad(parameter).defined()) {
      move_into_slot(parameter);
    } else {
      buffer_.detach_views(parameter);
      buffer_.slot(parameter).zero_();
    }
  }
  const at::Tensor& tensor = buffer_.bucket(static_cast<int>(bucket));
  if (accumulator_) accumulator_->add_to(tensor, static_cast<int>(bucket));
  return tensor;
}

const at::Tensor& GradientStore::discard_bucket(std::size_t bucket) {
  for (const int parameter : plan().buckets[bucket].parameters) buffer_.detach_views(parameter);
  return buffer_.bucket(static_cast<int>(bucket));
}

const at::Tensor& GradientStore::fill_rows(int index) {
  sparse_.on_gradient(index);
  sparse_.to_local_share(index, share_factor(total_weight_));
  return sparse_.gradient(index);
}

std::vector<bool> GradientStore::take_used() {
  std::vector<bool> used(records_.size());
  for (int i = 0; i < slots(); ++i) used[i] = grad(i).defined() || (accumulator_ && accumulator_->used(i));
  drop_micro_batches();
  return used;
}

bool GradientStore::any_written_in_flight() const {
  return std::ranges::find(buckets_, BucketState::written_in_flight) != buckets_.end();
}

void GradientStore::set_mean(double total_weight, std::size_t summed, const std::vector<bool>& used,
                             std::span<const at::Tensor> rows) {
  total_weight_ = total_weight;
  for (std::size_t i = 0; i < summed; ++i)
    buckets_[i] = written_in_flight(i) ? BucketState::local_share : BucketState::mean;
  for (int i = 0; i < slots(); ++i) {
    if (used[i] && !grad(i).defined()) buffer_.alias(i);
    records_[i].aliased = buffer_.aliased(i);
    records_[i].version = buffer_.slot(i)._version();
  }
  for (std::size_t i = 0; i < rows.size(); ++i) sparse_.set_mean(static_cast<int>(i), rows[i]);
}

void GradientStore::abandon_sync() {
  std::ranges::replace(buckets_, BucketState::written_in_flight, BucketState::local_share);
}

void GradientStore::rebuild_buckets(const BucketOptions& options, std::span<const int> order) {
  const at::NoGradGuard no_grad;
  buffer_.rebuild(plan_buckets(buffer_.sizes(), options, order));
  buckets_.assign(plan().buckets.size(), BucketState::mean);
  for (int i = 0; i < slots(); ++i) records_[i].version = buffer_.slot(i)._version();
}

void GradientStore::clear(bool set_to_none) {
  for (const NamedParameter& parameter : parameters_.trained) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (set_to_none || parameter.sparse) {
      gradient.reset();
    } else if (gradient.defined()) {
      gradient.zero_();
    }
  }
  for (int i = 0; i < slots(); ++i) {
    move_into_slot(i);  // zeros of the program count as cleared gradients
    records_[i].aliased = buffer_.aliased(i);
    if (!records_[i].aliased) buffer_.detach_views(i);
  }
  sparse_.untrack_all();
  drop_micro_batches();
  std::ranges::fill(buckets_, BucketState::local_share);
}

void GradientStore::untrack() {
  sparse_.untrack_all();
  drop_micro_batches();
  std::ranges::fill(buckets_, BucketState::local_share);
  for (int i = 0; i < slots(); ++i) {
    records_[i].aliased = false;
    buffer_.detach_views(i);
  }
}

void GradientStore::discard() {
  for (const NamedParameter& parameter : parameters_.trained) parameter.tensor.mutable_grad().reset();
  untrack();
}

void GradientStore::set_loss_scale(double scale, bool rescales) {
  // Gradients are linear, so pending gradients are rescaled. Scales are powers of 2 as a rule, so this does not round.
  if (rescales) {
    const bool was_changed = changed(true).has_value();
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (buckets_[i] != BucketState::mean) buffer_.bucket(static_cast<int>(i)).mul_(scale / loss_scale_);
    }
    sparse_.scale_local_shares(scale / loss_scale_);
    if (!was_changed) record(true);
  }
  loss_scale_ = scale;
}

void GradientStore::accumulate_micro_batch() {
  std::vector<at::Tensor> flat;
  std::vector<bool> used(records_.size());
  for (int i = 0; i < slots(); ++i) {
    used[i] = grad(i).defined();
    if (used[i]) {
      move_into_slot(i);
    } else {
      buffer_.slot(i).zero_();
    }
  }
  for (std::size_t i = 0; i < buckets_.size(); ++i) flat.push_back(buffer_.bucket(static_cast<int>(i)));
  accumulator_->push(flat, used);
  for (int i = 0; i < slots(); ++i) {
    parameters_.trained[i].tensor.mutable_grad().reset();
    records_[i].aliased = false;
  }
}

void GradientStore::drop_micro_batches() {
  if (accumulator_) accumulator_->clear();
}

void GradientStore::scale_bucket(std::size_t bucket, double factor) {
  if (factor == 1) return;
  // A tensor of the program that replaced a mean counts as the mean.
  for (const int parameter : plan().buckets[bucket].parameters) move_into_slot(parameter);
  buffer_.bucket(static_cast<int>(bucket)).mul_(factor);
}

void GradientStore::bucket_to_local_share(std::size_t bucket) {
  if (buckets_[bucket] != BucketState::mean) return;
  scale_bucket(bucket, share_factor(total_weight_));
  buckets_[bucket] = BucketState::local_share;
}

void GradientStore::move_into_slot(int parameter) {
  try {
    if (buffer_.move_in(parameter) && records_[parameter].aliased) ++copied_;
  } catch (const UsageError& error) {
    throw UsageError("parameter " + quoted(parameters_.trained[parameter]) + ": " + error.what());
  }
}

}  // namespace tutti::sync
