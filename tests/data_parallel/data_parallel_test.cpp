// 1, 2 and 3 replicas on threads of one process, against the module itself over the whole batch.
#include "tutti/data_parallel/data_parallel.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <barrier>
#include <stdexcept>
#include <string>

#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/detail/amp/autocast.h"

namespace tutti::data_parallel_test {
namespace {

using test::close;
using test::gradients_of;
using test::random_tensor;

/// test::Mlp with clone().
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() {
    reset();
    test::fill(*this, 1);
  }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return second(at::tanh(first(x))); }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};
TORCH_MODULE(Net);

at::Tensor inputs_of(std::int64_t samples) {
  return random_tensor({samples, 6}, 11);
}
at::Tensor targets_of(std::int64_t samples) {
  return random_tensor({samples, 3}, 12);
}

TEST(ScatterSizes, FollowTheRuleOfChunk) {
  for (std::int64_t samples = 1; samples <= 20; ++samples) {
    for (int replicas = 1; replicas <= 5; ++replicas) {
      std::vector<std::int64_t> expected;
      for (const auto& chunk : at::zeros({samples}).chunk(replicas)) expected.push_back(chunk.size(0));
      EXPECT_EQ(scatter_sizes(samples, replicas), expected) << samples << " for " << replicas;
    }
  }
  EXPECT_EQ(scatter_sizes(0, 3), std::vector<std::int64_t>{0});
  EXPECT_THROW(scatter_sizes(-1, 2), UsageError);
  EXPECT_THROW(scatter_sizes(1, 0), UsageError);
}

TEST(DataParallel, GivesTheOutputsAndGradientsOfOneProcess) {
  for (const std::int64_t samples : {1, 2, 3, 4, 5, 7, 8, 12}) {
    Net alone;
    const auto expected = alone(inputs_of(samples));
    test::loss_of(expected, targets_of(samples)).backward();
    for (const int replicas : {1, 2, 3}) {
      SCOPED_TRACE(std::to_string(samples) + " samples on " + std::to_string(replicas));
      Net net;
      DataParallel parallel(net, {.replicas = replicas});
      const auto output = parallel(inputs_of(samples));
      EXPECT_TRUE(close({output}, {expected}));
      test::loss_of(output, targets_of(samples)).backward();
      EXPECT_TRUE(close(gradients_of(*net), gradients_of(*alone)));
    }
  }
}

TEST(DataParallel, TrainsLikeOneProcess) {
  Net alone;
  Net net;
  DataParallel parallel(net, {.replicas = 3});
  torch::optim::SGD alone_sgd(alone->parameters(), 0.5);
  torch::optim::SGD sgd(net->parameters(), 0.5);
  for (std::int64_t step = 0; step < 5; ++step) {
    const auto batch = test::batch_of(step, at::kFloat, 7);
    for (int pass = 0; pass < 2; ++pass) {  // gradients of two passes add up
      test::loss_of(alone(batch.input), batch.target).backward();
      test::loss_of(parallel(batch.input), batch.target).backward();
    }
    alone_sgd.step();
    sgd.step();
    alone_sgd.zero_grad();
    sgd.zero_grad();
  }
  EXPECT_TRUE(close(net->parameters(), alone->parameters(), 1e-5));
  Net untrained;
  EXPECT_FALSE(close(net->parameters(), untrained->parameters(), 1e-2));
}

TEST(DataParallel, GathersLosses) {
  Net alone;
  test::loss_of(alone(inputs_of(7)), targets_of(7)).backward();
  Net net;
  DataParallel parallel(net, {.replicas = 3});
  const auto losses = parallel.apply(
      [](NetImpl& replica, const at::Tensor& x, const at::Tensor& y) { return test::loss_of(replica.forward(x), y); },
      inputs_of(7), targets_of(7));
  ASSERT_EQ(losses.sizes(), at::IntArrayRef({3}));
  // Pieces of 3, 3 and 1 samples: the weighted sum is the mean over the samples.
  const auto sizes = scatter_sizes(7, 3);
  ((losses * at::tensor(sizes)).sum() / 7).backward();
  EXPECT_TRUE(close(gradients_of(*net), gradients_of(*alone)));
  const auto one =
      DataParallel(net, {.replicas = 1}).apply([](NetImpl&, const at::Tensor& x) { return x.sum(); }, inputs_of(2));
  EXPECT_EQ(one.sizes(), at::IntArrayRef({1}));
}

TEST(DataParallel, GradientsReachInputs) {
  Net net;
  DataParallel parallel(net, {.replicas = 2});
  auto leaf = inputs_of(5).set_requires_grad(true);
  auto expected = inputs_of(5).set_requires_grad(true);
  (parallel(leaf * 2) * targets_of(5)).sum().backward();
  (net(expected * 2) * targets_of(5)).sum().backward();
  EXPECT_TRUE(close({leaf.grad()}, {expected.grad()}));
}

TEST(DataParallel, BackwardRunsInAnyOrderAndTwice) {
  Net alone;
  Net net;
  DataParallel parallel(net, {.replicas = 2});
  const auto first = parallel(inputs_of(4)).sum();
  const auto second = parallel(inputs_of(6)).pow(2).sum();
  second.backward({}, /*retain_graph=*/true);
  first.backward();
  second.backward();
  EXPECT_THROW(second.backward(), std::exception);
  (alone(inputs_of(4)).sum() + 2 * alone(inputs_of(6)).pow(2).sum()).backward();
  EXPECT_TRUE(close(gradients_of(*net), gradients_of(*alone)));
}

TEST(DataParallel, ReplicasRunInParallel) {
  // Each replica waits for the others in forward: if they ran one after another, the test would hang.
  std::barrier together(3);
  Net net;
  DataParallel parallel(net, {.replicas = 3});
  parallel.apply(
      [&](NetImpl& replica, const at::Tensor& x) {
        together.arrive_and_wait();
        return replica.forward(x);
      },
      inputs_of(3));
}

TEST(DataParallel, FrozenAndUnusedParameters) {
  Net net;
  DataParallel parallel(net, {.replicas = 2});
  net->first->weight.set_requires_grad(false);
  parallel(inputs_of(4)).sum().backward();
  EXPECT_FALSE(net->first->weight.grad().defined());
  EXPECT_TRUE(net->first->bias.grad().defined());
  net->zero_grad();
  net->first->weight.set_requires_grad(true);
  parallel.apply([](NetImpl& replica, const at::Tensor& x) { return replica.first(x); }, inputs_of(4)).sum().backward();
  EXPECT_TRUE(net->first->weight.grad().defined());
  EXPECT_FALSE(net->second->weight.grad().defined());
}

struct TiedImpl : torch::nn::Cloneable<TiedImpl> {
  TiedImpl() { reset(); }
  void reset() override {
    weight = register_parameter("weight", at::ones({6, 6}));
    same = register_parameter("same", weight);
  }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(x.matmul(weight)).matmul(same); }
  at::Tensor weight, same;
};
TORCH_MODULE(Tied);

TEST(DataParallel, TiedParametersCountOnce) {
  Tied alone;
  Tied net;
  alone(inputs_of(4)).sum().backward();
  DataParallel(net, {.replicas = 2})(inputs_of(4)).sum().backward();
  EXPECT_TRUE(close({net->weight.grad()}, {alone->weight.grad()}));
}

TEST(DataParallel, ThreadsInheritGradModeAndAutocast) {
  Net net;
  DataParallel parallel(net, {.replicas = 2});
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(parallel(inputs_of(4)).requires_grad());
    parallel.apply(
        [](NetImpl& replica, const at::Tensor& x) {
          EXPECT_FALSE(at::GradMode::is_enabled());
          return replica.forward(x);
        },
        inputs_of(4));
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(parallel(inputs_of(4)).is_inference());
  }
  for (const auto precision : {Precision::bf16, Precision::fp16, Precision::no}) {
    const AutocastScope autocast(precision, at::kCPU);
    const auto expected = net(inputs_of(4)).scalar_type();
    EXPECT_EQ(parallel(inputs_of(4)).scalar_type(), expected);
  }
  EXPECT_EQ(parallel(inputs_of(4)).scalar_type(), at::kFloat);
  EXPECT_TRUE(parallel(inputs_of(4)).requires_grad());
}

TEST(DataParallel, AutocastGivesTheGradientsOfOneProcess) {
  Net alone;
  Net net;
  DataParallel parallel(net, {.replicas = 2});
  const auto loss = [](auto&& forward) {
    const AutocastScope autocast(Precision::bf16, at::kCPU);
    return forward(inputs_of(8)).to(at::kFloat).sum();
  };
  for (int pass = 0; pass < 2; ++pass) {
    loss(alone).backward();
    loss(parallel).backward();
  }
  EXPECT_TRUE(close(gradients_of(*net), gradients_of(*alone), 2e-2));
}

TEST(DataParallel, AnExceptionNamesItsReplica) {
  Net net;
  DataParallel parallel(net, {.replicas = 3});
  std::atomic<int> ended{0};
  const auto second_fails = [&](NetImpl& replica, const at::Tensor& x) {
    ++ended;
    if (x[0][0].item<float>() == 1) throw std::out_of_range("odd piece");
    return replica.forward(x);
  };
  const auto x = at::arange(3, at::kFloat).unsqueeze(1).expand({3, 6}).contiguous();
  try {
    parallel.apply(second_fails, x);
    ADD_FAILURE() << "no exception";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "DataParallel: replica 1 of 3 failed in forward: odd piece");
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
  EXPECT_EQ(ended, 3);
  // The error of LibTorch, without its backtrace.
  try {
    parallel(random_tensor({6, 5}, 1));
    ADD_FAILURE() << "no exception";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("replica 0 of 3 failed in forward: "), std::string::npos) << message;
    EXPECT_EQ(message.find("frame #"), std::string::npos) << message;
  }
  EXPECT_TRUE(close({parallel(x)}, {net(x)}));  // the failure has no effect on the next forward
}

TEST(DataParallel, AnExceptionInBackwardNamesItsReplica) {
  Net net;
  DataParallel parallel(net, {.replicas = 2});
  const auto output = parallel.apply(
      [](NetImpl& replica, const at::Tensor& x) {
        auto y = replica.forward(x);
        if (x[0][0].item<float>() == 1) {
          y.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("bad gradient"); });
        }
        return y;
      },
      at::arange(2, at::kFloat).unsqueeze(1).expand({2, 6}).contiguous());
  try {
    output.sum().backward();
    ADD_FAILURE() << "no exception";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("replica 1 of 2 failed in backward: bad gradient"), std::string::npos)
        << error.what();
  }
  for (const auto& gradient : gradients_of(*net)) EXPECT_FALSE(gradient.defined());
}

TEST(DataParallel, AParameterChangedBeforeBackwardIsAnError) {
  Net net;
  DataParallel parallel(net, {.replicas = 2});
  const auto output = parallel(inputs_of(4));
  {
    const at::NoGradGuard no_grad;
    net->second->weight.mul_(2);
  }
  EXPECT_THROW(output.sum().backward(), std::exception);
}

TEST(DataParallel, DoesNotChangeTheGenerator) {
  torch::manual_seed(3);
  const auto expected = at::rand({4});
  Net net;
  torch::manual_seed(3);
  DataParallel parallel(net, {.replicas = 3});
  EXPECT_TRUE(at::rand({4}).equal(expected));
}

TEST(DataParallel, FollowsTheModule) {
  Net net;
  DataParallel parallel(net, {.replicas = 2});
  parallel(inputs_of(4));
  net->to(at::kDouble);
  const auto x = inputs_of(4).to(at::kDouble);
  parallel(x).sum().backward();
  EXPECT_EQ(net->first->weight.grad().scalar_type(), at::kDouble);
  EXPECT_TRUE(close({parallel(x)}, {net(x)}));
}

TEST(DataParallel, RefusesInvalidOptionsAndInputs) {
  Net net;
  EXPECT_THROW(DataParallel(net, {.replicas = 0}), UsageError);
  test::Mlp not_cloneable;
  EXPECT_THROW(DataParallel(not_cloneable, {.replicas = 2}), UsageError);
  EXPECT_THROW(DataParallel<NetImpl>(net.ptr(), [&] { return net.ptr(); }), UsageError);
  EXPECT_THROW(DataParallel<NetImpl>(net.ptr(), [] { return std::shared_ptr<NetImpl>(); }), UsageError);
  DataParallel parallel(net, {.replicas = 2});
  EXPECT_THROW(parallel(at::Tensor()), UsageError);
  EXPECT_THROW(parallel(at::ones({})), UsageError);
  const auto first = [](NetImpl& replica, const at::Tensor& x, const at::Tensor&) { return replica.forward(x); };
  EXPECT_THROW(parallel.apply(first, inputs_of(4), inputs_of(5)), UsageError);
  EXPECT_THROW(parallel.apply([](NetImpl&, const at::Tensor&) { return at::Tensor(); }, inputs_of(4)), UsageError);
  net->register_buffer("late", at::ones({1}));
  EXPECT_THROW(parallel(inputs_of(4)), UsageError);
}

TEST(DataParallel, GradientsReachParametersAndInputsOnly) {
  Net net;
  DataParallel parallel(net, {.replicas = 2});
  const auto scale = at::ones({}).requires_grad_();
  const auto input = inputs_of(4).requires_grad_();
  const auto scaled = [&](NetImpl& replica, const at::Tensor& x) { return replica.forward(x) * scale; };
  parallel.apply(scaled, input).sum().backward();
  EXPECT_TRUE(net->first->weight.grad().defined() && input.grad().defined());
  EXPECT_FALSE(scale.grad().defined());
}

TEST(DataParallel, AcceptsAFunctionForModulesThatCannotBeCloned) {
  test::Mlp alone;
  test::Mlp net;
  DataParallel<test::MlpImpl> parallel(net.ptr(), [] { return std::make_shared<test::MlpImpl>(7); }, {.replicas = 2});
  test::loss_of(parallel(inputs_of(5)), targets_of(5)).backward();
  test::loss_of(alone(inputs_of(5)), targets_of(5)).backward();
  EXPECT_TRUE(close(gradients_of(*net), gradients_of(*alone)));
}

}  // namespace
}  // namespace tutti::data_parallel_test
