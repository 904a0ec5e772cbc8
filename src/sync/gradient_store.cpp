#include "sync/gradient_store.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>

#include <algorithm>
#include <utility>

#include "device/devices.h"
#include "device/side_stream.h"
#include "sync/reproducible_rules.h"
#include "sync/sampled_hash.h"
#include "tutti/core/error.h"

namespace tutti::sync {

namespace {

/// Gradients of this many bytes are held twice at most: in the tensors that autograd made, and in their slots.
constexpr std::int64_t most_waiting_bytes = 4 << 20;

std::vector<at::Tensor> tensors_with_slot(const ParameterSet& parameters) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < parameters.slots; ++i) tensors.push_back(parameters.trained[i].tensor);
  return tensors;
}

}  // namespace

template <typename Action>
void GradientStore::naming(int parameter, const Action& action) const {
  try {
    action();
  } catch (const UsageError& error) {
    throw UsageError("parameter " + quoted(parameters_.trained[parameter]) + ": " + error.what());
  }
}

GradientStore::GradientStore(const ParameterSet& parameters, const ReducerOptions& options,
                             const Communicator& communicator)
    : parameters_(parameters),
      communicator_(communicator),
      buffer_(tensors_with_slot(parameters), options.buckets, communicator),
      sparse_({parameters.trained.begin() + parameters.slots, parameters.trained.end()}),
      waiting_(buffer_.plan().group_bytes.size()),
      records_(static_cast<std::size_t>(parameters.slots)),
      buckets_(buffer_.plan().buckets.size()) {
  // The streams that have allocated the memory: the allocator knows them.
  for (const Bucket& bucket : plan().buckets) streams_.add_current(buffer_.group_device(bucket.group));
  if (!options.reproducible) return;
  require_reproducible(parameters, options, communicator);
  accumulator_.emplace();
}

std::optional<std::size_t> GradientStore::bucket_of(int parameter) const {
  if (parameter >= slots()) return std::nullopt;
  return plan().slots[parameter].bucket;
}

void GradientStore::begin_pass(bool window_is_pending) {
  std::ranges::fill(waiting_, Waiting());  // of a pass that an exception ended
  streams_.begin_pass();
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
  if (is_on_device(parameter)) {
    use_on_current_stream(parameters_.trained[parameter].tensor.device());
    if (!grad(parameter).defined() || buffer_.aliased(parameter)) {
      records_[parameter].aliased = buffer_.aliased(parameter);
      return;
    }
    naming(parameter, [&] { buffer_.require_dense(parameter); });
    const auto group = static_cast<std::size_t>(buffer_.sizes()[parameter].group);
    waiting_[group].parameters.push_back(parameter);
    waiting_[group].bytes += buffer_.sizes()[parameter].bytes;
    if (waiting_[group].bytes >= most_waiting_bytes) move_waiting(group);
    return;
  }
  move_into_slot(parameter);
  records_[parameter].aliased = buffer_.aliased(parameter);
}

void GradientStore::record(bool window_is_pending) {
  move_all_waiting();
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
  const at::Tensor& tensor = buffer_.bucket(static_cast<int>(bucket));
  std::vector<int> present;
  for (const int parameter : plan().buckets[bucket].parameters) {
    if (grad(parameter).defined()) {
      present.push_back(parameter);
    } else {
      buffer_.detach_views(parameter);
      buffer_.slot(parameter).zero_();
    }
  }
  bucket_to_local_share(bucket);  // after the program's views of absent gradients have memory of their own
  const auto group = static_cast<std::size_t>(plan().buckets[bucket].group);
  move_waiting(group);  // the others of the group are of this pass too, so that a pass moves each once
  move_into_slots(present);
  // Autograd may have added to gradients that were in their slots on other streams than this one.
  streams_.block_current_stream(tensor.device());
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
  move_all_waiting();
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
  for (const Bucket& bucket : plan().buckets) use_on_current_stream(buffer_.group_device(bucket.group));
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
  std::ranges::fill(waiting_, Waiting());
  std::vector<std::vector<at::Tensor>> on_devices(waiting_.size());
  for (int i = 0; i < static_cast<int>(parameters_.trained.size()); ++i) {
    at::Tensor& gradient = parameters_.trained[i].tensor.mutable_grad();
    if (set_to_none || i >= slots()) {
      gradient.reset();
    } else if (gradient.defined() && is_on_device(i)) {
      on_devices[static_cast<std::size_t>(buffer_.sizes()[i].group)].push_back(gradient);
    } else if (gradient.defined()) {
      gradient.zero_();
    }
  }
  for (const std::vector<at::Tensor>& gradients : on_devices) {
    if (!gradients.empty()) at::_foreach_zero_(gradients);
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
  std::ranges::fill(waiting_, Waiting());
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
    if (accumulator_) accumulator_->scale(scale / loss_scale_);
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
      buffer_.detach_views(i);  // the program may hold the gradient of an earlier scope
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
  naming(parameter, [&] {
    if (buffer_.move_in(parameter) && records_[parameter].aliased) ++copied_;
  });
}

void GradientStore::move_into_slots(const std::vector<int>& parameters) {
  if (parameters.empty() || !is_on_device(parameters.front())) {
    for (const int parameter : parameters) move_into_slot(parameter);
    return;
  }
  const bool others = streams_.block_current_stream(parameters_.trained[parameters.front()].tensor.device());
  for (const int parameter : parameters) {
    naming(parameter, [&] { buffer_.require_dense(parameter); });
    // Autograd allocated the gradient for the stream that made it.
    if (others && grad(parameter).defined()) devices::record_use_on_current_stream(grad(parameter));
  }
  for (const int parameter : buffer_.move_in_together(parameters)) {
    if (records_[parameter].aliased) ++copied_;
  }
}

void GradientStore::move_waiting(std::size_t group) {
  const Waiting waiting = std::exchange(waiting_[group], {});
  move_into_slots(waiting.parameters);
  for (const int parameter : waiting.parameters) records_[parameter].aliased = buffer_.aliased(parameter);
}

void GradientStore::move_all_waiting() {
  for (std::size_t group = 0; group < waiting_.size(); ++group) move_waiting(group);
}

void GradientStore::use_on_current_stream(at::Device device) {
  if (streams_.add_current(device)) buffer_.record_current_stream(device);
}

bool GradientStore::is_on_device(int parameter) const {
  return devices::is_accelerator(parameters_.trained[parameter].tensor.device());
}

}  // namespace tutti::sync
