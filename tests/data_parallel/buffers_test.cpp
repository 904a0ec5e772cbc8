// Buffers of replicas, which are copies of the module's on all replicas but the first. 2 replicas on threads.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "support/training.h"
#include "tutti/data_parallel/data_parallel.h"

namespace tutti::data_parallel_buffers_test {
namespace {

using test::close;
using test::gradients_of;
using test::random_tensor;
using torch::nn::SequentialImpl;

torch::nn::Sequential net_with_batch_norm() {
  torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(6, 4).bias(false)), torch::nn::BatchNorm1d(4));
  test::fill(*net, 5);
  return net;
}

at::Tensor call(SequentialImpl& replica, const at::Tensor& x) {
  return replica.forward(x);
}

TEST(DataParallelBuffers, BatchNormKeepsTheFirstPiecesStatistics) {
  auto alone = net_with_batch_norm();
  auto net = net_with_batch_norm();
  const auto x = random_tensor({8, 6}, 11);
  DataParallel<SequentialImpl> parallel(net.ptr(), {.replicas = 2});
  for (int step = 0; step < 3; ++step) {
    alone->forward(x.narrow(0, 0, 4));
    parallel.apply(call, x);
  }
  const auto buffers = net->named_buffers();
  EXPECT_TRUE(buffers["1.running_mean"].equal(alone->named_buffers()["1.running_mean"]));
  EXPECT_TRUE(buffers["1.running_var"].equal(alone->named_buffers()["1.running_var"]));
  EXPECT_EQ(buffers["1.num_batches_tracked"].item<int>(), 3);
  // In evaluation all replicas use the module's statistics.
  net->eval();
  alone->eval();
  EXPECT_TRUE(close({parallel.apply(call, x)}, {alone->forward(x)}));
  EXPECT_EQ(buffers["1.num_batches_tracked"].item<int>(), 3);
}

// As a discriminator has, which judges real and generated samples in one step.
TEST(DataParallelBuffers, BackwardRunsAfterTwoForwardsWithBatchNorm) {
  auto alone = net_with_batch_norm();
  auto net = net_with_batch_norm();
  DataParallel<SequentialImpl> parallel(net.ptr(), {.replicas = 2});
  at::Tensor loss, expected;
  for (const unsigned seed : {11U, 12U}) {
    const auto x = random_tensor({8, 6}, seed);
    const auto add = [](at::Tensor& sum, const at::Tensor& output) {
      const auto one = output.pow(3).sum();
      sum = sum.defined() ? sum + one : one;
    };
    add(loss, parallel.apply(call, x));
    for (const auto& piece : x.chunk(2)) add(expected, alone->forward(piece));
  }
  loss.backward();
  expected.backward();
  EXPECT_TRUE(close(gradients_of(*net), gradients_of(*alone), 1e-5));
}

/// Multiplies by a buffer, to which it assigns the mean of each training batch. Autograd tracks this assignment.
struct ScaledImpl : torch::nn::Cloneable<ScaledImpl> {
  ScaledImpl() { reset(); }
  void reset() override {
    weight = register_parameter("weight", at::ones({6}));
    mean = register_buffer("mean", at::ones({6}));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (is_training()) {
      const at::NoGradGuard no_grad;
      mean.copy_(x.mean(0));
    }
    return x * weight * mean;
  }
  at::Tensor weight, mean;
};
TORCH_MODULE(Scaled);

TEST(DataParallelBuffers, ABufferThatAutogradTracksIsNotOverwrittenUnnoticed) {
  Scaled net;
  DataParallel parallel(net, {.replicas = 2});
  const auto x = random_tensor({8, 6}, 11);
  const auto loss = parallel(x).sum();
  net->eval();
  parallel(x);  // the second replica gets the first one's buffer, and its backward needs its own
  EXPECT_THROW(loss.backward(), std::exception);
}

}  // namespace
}  // namespace tutti::data_parallel_buffers_test
