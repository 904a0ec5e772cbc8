// A model with SyncBatchNorm through the Accelerator against one process with torch::nn::BatchNorm.
#include "tutti/sync/sync_batch_norm.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::sync_batch_norm_test {
namespace {

template <typename Norm>
struct NetImpl : torch::nn::Module {
  explicit NetImpl(Norm layer)
      : first(register_module("first", torch::nn::Linear(6, 8))),
        norm(register_module("norm", std::move(layer))),
        second(register_module("second", torch::nn::Linear(8, 3))) {
    fill(*first, 1);
    fill(*second, 2);
  }
  at::Tensor forward(const at::Tensor& x) { return second(at::relu(norm(first(x)))); }
  torch::nn::Linear first;
  Norm norm;
  torch::nn::Linear second;
};

/// Samples of a rank in a step, different on each rank.
std::int64_t samples_of(std::int64_t step, int rank) {
  return 3 + (step + 2 * rank) % 4;
}

at::Tensor summed_loss(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().sum();
}

const RankCase trains("sync_batch_norm_trains", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  auto net = std::make_shared<NetImpl<SyncBatchNorm>>(SyncBatchNorm(8, communicator));
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  NetImpl<torch::nn::BatchNorm1d> reference(torch::nn::BatchNorm1d(8));
  torch::optim::SGD sgd(reference.parameters(), 0.1);

  for (std::int64_t step = 0; step < 4; ++step) {
    std::vector<at::Tensor> inputs, targets;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const Batch batch = batch_of(step * 10 + rank, at::kFloat, samples_of(step, rank));
      inputs.push_back(batch.input);
      targets.push_back(batch.target);
    }
    const at::Tensor all = at::cat(inputs);
    sgd.zero_grad();
    (summed_loss(reference.forward(all), at::cat(targets)) / all.size(0)).backward();
    sgd.step();

    const auto own = static_cast<std::size_t>(communicator.rank());
    const auto weight = static_cast<double>(inputs[own].size(0));
    const auto window = accelerator.accumulate(model, {.weight = weight});
    accelerator.backward(summed_loss(model->forward(inputs[own]), targets[own]));
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_TRUE(close(model->parameters(), reference.parameters(), 1e-5));
  EXPECT_TRUE(close({model->norm->running_mean, model->norm->running_var},
                    {reference.norm->running_mean, reference.norm->running_var}, 1e-5));
});
TEST(SyncBatchNormTraining, EqualsOneProcess) {
  trains.everywhere();
}

}  // namespace
}  // namespace tutti::test::sync_batch_norm_test
