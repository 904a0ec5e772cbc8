// SyncBatchNorm, compared with torch::nn::BatchNorm of one process that reads all ranks' samples.
#include "tutti/sync/sync_batch_norm.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <fstream>
#include <sstream>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"

namespace tutti::test::sync_batch_norm_test {
namespace {

using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNorm3d;
using torch::nn::BatchNormOptions;

constexpr std::int64_t channels = 4;

/// Numbers of samples by rank, in several distributions of seven samples.
std::vector<std::vector<std::int64_t>> shares(int ranks) {
  if (ranks == 1) return {{7}};
  if (ranks == 2) return {{5, 2}, {0, 7}, {6, 1}};
  return {{3, 3, 1}, {0, 5, 2}, {7, 0, 0}};
}

/// This rank's part of `all`.
at::Tensor own_part(const at::Tensor& all, const std::vector<std::int64_t>& sizes, int rank) {
  return all.split_with_sizes(sizes)[static_cast<std::size_t>(rank)];
}

template <typename Model>
void set_parameters(Model& model) {
  if (!model->options.affine()) return;
  const at::NoGradGuard no_grad;
  model->weight.copy_(random_tensor({channels}, 11, at::kDouble));
  model->bias.copy_(random_tensor({channels}, 12, at::kDouble));
}

std::vector<at::Tensor> buffers_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& buffer : model.buffers()) {
    if (buffer.defined()) buffers.push_back(buffer.to(at::kDouble));
  }
  return buffers;
}

/// Trains SyncBatchNorm and Reference on batches of `shape`. Compares outputs, gradients and buffers.
template <typename Reference>
void expect_equals(const Communicator& communicator, const BatchNormOptions& options, std::vector<std::int64_t> shape,
                   at::ScalarType dtype, double tolerance) {
  Reference reference(options);
  SyncBatchNorm model(options, communicator);
  set_parameters(reference);
  set_parameters(model);
  reference->to(dtype);
  model->to(dtype);
  std::uint64_t seed = 100;
  for (const auto& sizes : shares(communicator.size())) {
    shape[0] = 7;
    const at::Tensor all = (random_tensor(shape, ++seed, dtype) * 2 + 3).requires_grad_();
    const at::Tensor factors = random_tensor(shape, ++seed, dtype);  // the output's gradients
    const at::Tensor expected = reference(all);
    (expected * factors).sum().backward();

    const at::Tensor own = own_part(all, sizes, communicator.rank()).detach().clone().requires_grad_();
    const at::Tensor output = model(own);
    (output * own_part(factors, sizes, communicator.rank())).sum().backward();

    EXPECT_EQ(output.scalar_type(), dtype);
    EXPECT_TRUE(close({output}, {own_part(expected, sizes, communicator.rank())}, tolerance));
    EXPECT_TRUE(close({own.grad()}, {own_part(all.grad(), sizes, communicator.rank())}, tolerance));
    auto summed = gradients_of(*model);
    for (const at::Tensor& gradient : summed) communicator.all_reduce(gradient).wait();
    EXPECT_TRUE(close(summed, gradients_of(*reference), tolerance));
    EXPECT_TRUE(close(buffers_of(*model), buffers_of(*reference), tolerance));
    for (const at::Tensor& buffer : model->buffers()) {
      if (!buffer.defined()) continue;
      const at::Tensor first = buffer.clone();
      communicator.broadcast(first).wait();
      EXPECT_TRUE(at::equal(buffer, first));
    }
    reference->zero_grad();
    model->zero_grad();
  }
  reference->eval();
  model->eval();
  const at::Tensor held_out = random_tensor(shape, 99, dtype);
  EXPECT_TRUE(close({model(held_out)}, {reference(held_out)}, tolerance));
}

const RankCase equals_in_float("sync_batch_norm_float", [](const Communicator& communicator) {
  expect_equals<BatchNorm2d>(communicator, BatchNormOptions(channels), {0, channels, 3, 5}, at::kFloat, 2e-6);
});
TEST(SyncBatchNorm, EqualsOneProcessInFloat) {
  equals_in_float.everywhere();
}

const RankCase equals_in_double("sync_batch_norm_double", [](const Communicator& communicator) {
  const BatchNormOptions defaults(channels);
  expect_equals<BatchNorm2d>(communicator, defaults, {0, channels, 3, 5}, at::kDouble, 1e-13);
  expect_equals<BatchNorm1d>(communicator, defaults, {0, channels}, at::kDouble, 1e-13);
  expect_equals<BatchNorm1d>(communicator, defaults, {0, channels, 6}, at::kDouble, 1e-13);
  expect_equals<BatchNorm3d>(communicator, defaults, {0, channels, 2, 3, 2}, at::kDouble, 1e-13);
});
TEST(SyncBatchNorm, EqualsOneProcessInDoubleForInputsOfTwoToFiveDimensions) {
  equals_in_double.on_threads({1, 2, 3});
}

const RankCase equals_with_options("sync_batch_norm_options", [](const Communicator& communicator) {
  const std::vector<std::int64_t> shape{0, channels, 3};
  const auto expect = [&](const BatchNormOptions& options) {
    expect_equals<BatchNorm1d>(communicator, options, shape, at::kDouble, 1e-13);
  };
  expect(BatchNormOptions(channels).eps(0.3).momentum(0.7));
  expect(BatchNormOptions(channels).momentum(std::nullopt));
  expect(BatchNormOptions(channels).affine(false));
});
TEST(SyncBatchNorm, EqualsOneProcessWithOtherOptions) {
  equals_with_options.on_threads({1, 2, 3});
}

const RankCase equals_in_half("sync_batch_norm_half", [](const Communicator& communicator) {
  expect_equals<BatchNorm2d>(communicator, BatchNormOptions(channels), {0, channels, 3, 5}, at::kBFloat16, 2e-2);
});
TEST(SyncBatchNorm, EqualsOneProcessInBfloat16) {
  equals_in_half.on_threads({1, 2, 3});
}

// As in mixed precision: parameters and statistics stay in float.
TEST(SyncBatchNorm, TakesHalfPrecisionInputsToAFloatModule) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    SyncBatchNorm model(channels, communicator);
    const at::Tensor input = random_tensor({3, channels, 2}, 5 + communicator.rank()).to(at::kBFloat16);
    const at::Tensor leaf = input.clone().requires_grad_();
    const at::Tensor output = model(leaf);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    output.square().sum().backward();
    EXPECT_EQ(leaf.grad().scalar_type(), at::kBFloat16);
    EXPECT_EQ(model->weight.grad().scalar_type(), at::kFloat);
    EXPECT_EQ(model->running_mean.scalar_type(), at::kFloat);
  });
}

TEST(SyncBatchNorm, WithoutRunningStatisticsItEvaluatesByTheOwnBatch) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    const auto options = BatchNormOptions(channels).track_running_stats(false);
    SyncBatchNorm model(options, communicator);
    BatchNorm1d reference(options);
    const at::Tensor all = random_tensor({7, channels}, 3);
    const at::Tensor own = own_part(all, {4, 3}, communicator.rank());
    EXPECT_TRUE(close({model(own)}, {own_part(reference(all), {4, 3}, communicator.rank())}));
    model->eval();
    reference->eval();
    EXPECT_TRUE(at::equal(model(own), reference(own)));
  });
}

TEST(SyncBatchNorm, OneRankGivesTheSameBits) {
  SyncBatchNorm model(channels, Communicator());
  BatchNorm2d reference(channels);
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const at::Tensor input = random_tensor({3, channels, 4, 4}, seed);
    EXPECT_TRUE(at::equal(model(input), reference(input)));
  }
  EXPECT_TRUE(at::equal(model->running_var, reference->running_var));
  EXPECT_EQ(model->num_batches_tracked.item<std::int64_t>(), 3);
}

TEST(SyncBatchNorm, HasTheNamesOfBatchNorm) {
  const SyncBatchNorm model(channels, Communicator());
  const BatchNorm2d reference(channels);
  EXPECT_EQ(model->named_parameters().keys(), reference->named_parameters().keys());
  EXPECT_EQ(model->named_buffers().keys(), reference->named_buffers().keys());
  std::ostringstream text;
  text << model;
  EXPECT_EQ(text.str(), "tutti::SyncBatchNorm(4, eps=1e-05, momentum=0.1, affine=true, track_running_stats=true)");
}

// No rank has samples: gradients are zeros, and statistics stay unchanged.
TEST(SyncBatchNorm, NoSamplesAnywhere) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    SyncBatchNorm model(channels, communicator);
    const at::Tensor input = at::zeros({0, channels, 2}).requires_grad_();
    model(input).sum().backward();
    EXPECT_TRUE(at::equal(model->weight.grad(), at::zeros({channels})));
    EXPECT_TRUE(at::equal(model->running_var, at::ones({channels})));
  });
}

TEST(SyncBatchNorm, RefusesToHaveNoChannels) {
  for (const int ranks : {1, 2}) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      SyncBatchNorm model(0, communicator);
      EXPECT_THROW(model(at::zeros({2, 0})), UsageError);
    });
  }
}

TEST(SyncBatchNorm, RefusesOneValueInEachChannelOnAllRanks) {
  for (const int ranks : {1, 2, 3}) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      SyncBatchNorm model(channels, communicator);
      EXPECT_THROW(model(at::ones({communicator.rank() == 0 ? 1 : 0, channels})), UsageError);
      EXPECT_EQ(model->num_batches_tracked.item<std::int64_t>(), 0);
      model(random_tensor({2, channels}, 1));
      EXPECT_EQ(model->num_batches_tracked.item<std::int64_t>(), 1);
    });
  }
}

TEST(SyncBatchNorm, ARefusedInputIsAnErrorOnAllRanksAndChangesNothing) {
  run_thread_ranks(3, [](const Communicator& communicator) {
    SyncBatchNorm model(channels, communicator);
    const at::Tensor good = random_tensor({2, channels}, 1);
    for (const at::Tensor& bad :
         {at::Tensor(), at::ones({channels}), at::ones({2, channels + 1}), at::ones({2, channels, 1, 1, 1, 1}),
          at::ones({2, channels}, at::kLong), at::ones({2, channels}, at::kDouble)}) {
      if (communicator.rank() == 1) {
        EXPECT_THROW(model(bad), UsageError);
      } else {
        try {
          model(good);
          ADD_FAILURE() << "rank 1 was not missed";
        } catch (const PeerError& error) {
          EXPECT_EQ(error.ranks(), std::vector<int>{1});
        }
      }
    }
    EXPECT_EQ(model->num_batches_tracked.item<std::int64_t>(), 0);
    EXPECT_TRUE(at::equal(model->running_mean, at::zeros({channels})));
    model(good);
    model->eval();
    EXPECT_THROW(model(at::ones({2, channels + 1})), UsageError);
  });
}

TEST(SyncBatchNorm, RefusesCreateGraph) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    SyncBatchNorm model(channels, communicator);
    const at::Tensor input = random_tensor({2, channels}, 1).requires_grad_();
    const at::Tensor loss = model(input).square().sum();
    EXPECT_THROW(torch::autograd::grad({loss}, {input}, {}, std::nullopt, /*create_graph=*/true), UsageError);
  });
}

// Number of shared mappings of this process. Each channel of a node maps memory of all ranks of the node.
std::size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:tutti") != std::string::npos ? 1 : 0;
  return count;
}

// Layers share one channel, because all ranks run the layers' operations in one order.
const RankCase share_a_channel("sync_batch_norm_channels", [](const Communicator& communicator) {
  const BatchNormOptions options(channels);
  std::vector<SyncBatchNorm> layers = {SyncBatchNorm(options, communicator)};
  const std::size_t before = shared_mappings();
  EXPECT_GT(before, 0U);
  while (layers.size() < 40) layers.emplace_back(options, communicator);
  at::Tensor values = random_tensor({3, channels}, static_cast<std::uint64_t>(communicator.rank())).requires_grad_();
  at::Tensor end = values;
  for (SyncBatchNorm& layer : layers) end = layer(end);
  end.pow(3).sum().backward();
  EXPECT_TRUE(values.grad().isfinite().all().item<bool>());
  EXPECT_EQ(shared_mappings(), before);
});
TEST(SyncBatchNorm, ManyLayersNeedNoMoreConnectionsThanOne) {
  share_a_channel.on_processes({2, 3});
}

}  // namespace
}  // namespace tutti::test::sync_batch_norm_test
