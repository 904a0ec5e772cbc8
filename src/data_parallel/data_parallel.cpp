#include "tutti/data_parallel/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "data_parallel/gather_backward.h"
#include "data_parallel/replica_group.h"
#include "tutti/core/error.h"

namespace tutti {

std::vector<std::int64_t> scatter_sizes(std::int64_t samples, int replicas) {
  if (samples < 0 || replicas < 1) {
    throw UsageError("scatter_sizes: " + std::to_string(samples) + " samples for " + std::to_string(replicas) +
                     " replicas");
  }
  if (samples == 0) return {0};
  const std::int64_t piece = samples / replicas + (samples % replicas == 0 ? 0 : 1);
  std::vector<std::int64_t> sizes;
  for (std::int64_t left = samples; left > 0; left -= piece) sizes.push_back(std::min(left, piece));
  return sizes;
}

namespace data_parallel {
namespace {

std::int64_t samples_in(const std::vector<at::Tensor>& inputs) {
  if (inputs.empty()) throw UsageError("DataParallel: forward needs an input to split along dimension 0");
  for (const auto& input : inputs) {
    if (!input.defined() || input.dim() == 0) {
      throw UsageError("DataParallel: an input is undefined or a scalar: it has no samples to split");
    }
    if (input.size(0) != inputs.front().size(0)) {
      throw UsageError("DataParallel: inputs have " + std::to_string(inputs.front().size(0)) + " and " +
                       std::to_string(input.size(0)) + " samples: dimension 0 must be the same");
    }
  }
  return inputs.front().size(0);
}

/// The pieces are leaves, so that each replica's graph ends at its piece.
std::vector<at::Tensor> pieces_of(const std::vector<at::Tensor>& inputs, std::int64_t begin, std::int64_t length,
                                  const std::optional<at::Device>& device) {
  std::vector<at::Tensor> pieces;
  for (const auto& input : inputs) {
    auto piece = input.detach().narrow(0, begin, length);
    if (device) piece = piece.to(*device, /*non_blocking=*/true);
    if (at::GradMode::is_enabled()) piece.set_requires_grad(input.requires_grad());
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

at::Tensor gather(const Pass& pass) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> outputs;
  bool scalars = true;
  for (std::size_t i = 0; i < pass.replicas.size(); ++i) {
    const auto& output = pass.replicas[i].output;
    if (!output.defined()) throw UsageError("DataParallel: replica " + std::to_string(i) + " returned no tensor");
    scalars = scalars && output.dim() == 0;
    const auto& first = pass.replicas.front().output;
    outputs.push_back(output.detach().to(first.device(), /*non_blocking=*/true));
  }
  return scalars ? at::stack(outputs) : at::cat(outputs);
}

}  // namespace

std::shared_ptr<ReplicaGroup> make_replicas(std::shared_ptr<torch::nn::Module> module, const MakeReplica& make,
                                            const DataParallelOptions& options) {
  auto group = std::make_shared<ReplicaGroup>(std::move(module), make, options);
  group->refresh(group->size());  // releases the memory of the copied parameters
  return group;
}

at::Tensor run(const std::shared_ptr<ReplicaGroup>& replicas, const Call& call, const std::vector<at::Tensor>& inputs) {
  const auto sizes = scatter_sizes(samples_in(inputs), replicas->size());
  if (sizes.size() == 1) {
    auto pieces = inputs;
    if (const auto device = replicas->device(0)) {
      for (at::Tensor& piece : pieces) piece = piece.to(*device, /*non_blocking=*/true);
    }
    auto output = call(replicas->module(), pieces);
    return output.defined() && output.dim() == 0 ? output.unsqueeze(0) : output;
  }

  const int count = static_cast<int>(sizes.size());
  replicas->refresh(count);
  auto pass = std::make_shared<Pass>();
  pass->group = replicas;
  pass->inputs = inputs;
  std::int64_t begin = 0;
  for (int index = 0; index < count; ++index) {
    const auto length = sizes[static_cast<std::size_t>(index)];
    pass->replicas.push_back(
        {pieces_of(inputs, begin, length, replicas->device(index)), replicas->shared_parameters(index), {}});
    begin += length;
  }
  replicas->run(count, "forward", [&](int index) {
    auto& own = pass->replicas[static_cast<std::size_t>(index)];
    own.output = call(replicas->replica(index), own.pieces);
  });

  auto gathered = gather(*pass);
  const bool has_history = std::any_of(pass->replicas.begin(), pass->replicas.end(),
                                       [](const auto& replica) { return replica.output.requires_grad(); });
  if (at::GradMode::is_enabled() && has_history) attach_backward(gathered, std::move(pass));
  return gathered;
}

}  // namespace data_parallel
}  // namespace tutti
