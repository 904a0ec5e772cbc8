#include "train/model_buffers.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "device/devices.h"
#include "sync/check_same_model.h"
#include "sync/replicate.h"
#include "sync/sampled_hash.h"
#include "tutti/core/error.h"
#include "tutti/sync/sync_batch_norm.h"

namespace tutti {

namespace {

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1d>() != nullptr || module.as<torch::nn::BatchNorm2d>() != nullptr ||
         module.as<torch::nn::BatchNorm3d>() != nullptr || module.as<SyncBatchNorm>() != nullptr;
}

/// The tensor through which a step writes. In training BatchNorm's backward uses the statistics of the batch, not the
/// running ones, so that a write to these must not look like a change of the graph: .variable_data() has a version
/// counter of its own. The same for buffers on a device, which are written without a comparison: most of them, as masks
/// and tables, do not change.
at::Tensor written_tensor(const ModelBuffer& buffer) {
  const at::Tensor& tensor = buffer.named.tensor;
  const bool training = buffer.batch_norm && buffer.batch_norm->is_training();
  return training || devices::is_accelerator(tensor.device()) ? tensor.variable_data() : tensor;
}

/// A name for the exchange that differs between ranks if shapes, dtypes or types of device do, also if the number of
/// bytes is equal.
std::string exchange_name(const std::vector<ModelBuffer>& buffers) {
  std::vector<std::uint64_t> numbers;
  for (const ModelBuffer& buffer : buffers) {
    const at::Tensor& tensor = buffer.named.tensor;
    numbers.push_back(static_cast<std::uint64_t>(tensor.scalar_type()));
    numbers.push_back(static_cast<std::uint64_t>(tensor.device().type()));
    numbers.push_back(static_cast<std::uint64_t>(tensor.dim()));
    for (const std::int64_t size : tensor.sizes()) numbers.push_back(static_cast<std::uint64_t>(size));
  }
  return "buffers, shapes " + std::to_string(sync::combine(numbers) % 1'000'000'007);
}

void exchange(const std::vector<ModelBuffer>& buffers, BufferSync how, const Communicator& communicator) {
  std::vector<at::Tensor> of_rank_0;
  std::vector<at::Tensor> averaged;
  for (const ModelBuffer& buffer : buffers) {
    const at::Tensor tensor = written_tensor(buffer);
    (how == BufferSync::mean && tensor.is_floating_point() ? averaged : of_rank_0).push_back(tensor);
  }
  const std::string name = exchange_name(buffers);
  sync::replicate(of_rank_0, communicator, name, sync::DeviceWrites::always);
  sync::average(averaged, communicator, name);
}

}  // namespace

void BufferSchedule::add(const std::shared_ptr<torch::nn::Module>& module,
                         const std::shared_ptr<const std::string>& model_name,
                         const std::function<std::set<OptimizerIndex>(const std::vector<at::Tensor>&)>& optimizers_of) {
  add_layers(module, "", model_name, {}, optimizers_of);
}

void BufferSchedule::add_layers(
    const std::shared_ptr<torch::nn::Module>& module, const std::string& prefix,
    const std::shared_ptr<const std::string>& model_name, std::set<OptimizerIndex> optimizers,
    const std::function<std::set<OptimizerIndex>(const std::vector<at::Tensor>&)>& optimizers_of) {
  const auto of_layer = optimizers_of(module->parameters());
  if (!of_layer.empty()) optimizers = of_layer;
  if (optimizers.empty()) return;  // no optimizer trains the model
  const auto batch_norm = is_batch_norm(*module) ? module : nullptr;
  for (const auto& item : module->named_buffers(/*recurse=*/false)) {
    if (!item.value().defined()) continue;
    add_buffer(
        {.named = {.name = prefix + item.key(), .tensor = item.value(), .model = model_name}, .batch_norm = batch_norm},
        optimizers);
  }
  for (const auto& child : module->named_children()) {
    add_layers(child.value(), prefix + child.key() + ".", model_name, optimizers, optimizers_of);
  }
}

void BufferSchedule::add_buffer(ModelBuffer buffer, const std::set<OptimizerIndex>& optimizers) {
  std::set<OptimizerIndex> all = optimizers;
  for (Group& group : groups_) {
    const auto known = std::ranges::find_if(
        group.buffers, [&buffer](const ModelBuffer& one) { return one.named.tensor.is_same(buffer.named.tensor); });
    if (known == group.buffers.end()) continue;
    all.insert(group.optimizers.begin(), group.optimizers.end());  // a buffer that two layers share
    group.buffers.erase(known);
  }
  auto group = std::ranges::find(groups_, all, &Group::optimizers);
  if (group == groups_.end()) group = groups_.insert(groups_.end(), Group{.optimizers = all});
  group->buffers.push_back(std::move(buffer));
}

bool BufferSchedule::concerns(OptimizerIndex optimizer) const {
  return std::ranges::any_of(groups_, [optimizer](const Group& group) {
    return !group.buffers.empty() && group.optimizers.contains(optimizer);
  });
}

std::vector<ModelBuffer> BufferSchedule::after_step(OptimizerIndex optimizer) {
  std::vector<ModelBuffer> due;
  for (Group& group : groups_) {
    if (!group.optimizers.contains(optimizer)) continue;
    const bool again = !group.stepped.insert(optimizer).second;
    const bool all = group.stepped == group.optimizers;
    if (!again && !all) continue;
    due.insert(due.end(), group.buffers.begin(), group.buffers.end());
    group.stepped.clear();
    if (!all) group.stepped.insert(optimizer);
  }
  return due;
}

void synchronize_buffers(const std::vector<ModelBuffer>& buffers, BufferSync how, const Communicator& communicator) {
  if (how == BufferSync::none || communicator.size() == 1 || buffers.empty()) return;
  try {
    exchange(buffers, how, communicator);
  } catch (const MismatchError&) {
    if (communicator.failed()) throw;
    // All ranks have this error and wait for no other call, so they can compare the buffers.
    std::vector<NamedParameter> named;
    for (const ModelBuffer& buffer : buffers) named.push_back(buffer.named);
    sync::check_same_buffers(named, /*may_differ=*/false, communicator);
    throw;
  }
}

}  // namespace tutti
