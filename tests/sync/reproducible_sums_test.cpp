// Sums whose bits do not depend on how micro-batches are distributed over ranks (ReducerOptions::reproducible).
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <random>

#include "support/ranks.h"
#include "sync/pairwise_accumulator.h"
#include "sync/toy_model.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/detail/sync/sync_scopes.h"

namespace tutti::test::reproducible_sums_test {
namespace {

/// Numbers whose sum depends on the order.
double gradient_of(std::int64_t micro_batch) {
  std::mt19937_64 random(static_cast<std::uint64_t>(micro_batch));
  return std::normal_distribution<>(0, 1)(random) * 1e3 + 1e-3;
}

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// Bytes of both gradients after a window of `micro_batches`. Every third micro-batch does not use b.
std::string mean_over(int ranks, std::int64_t micro_batches) {
  std::map<int, std::string> bytes;
  std::mutex mutex;
  run_thread_ranks(ranks, [&](const Communicator& communicator) {
    ToyModel model(communicator, {.reproducible = true});
    const std::int64_t block = micro_batches / ranks;
    for (std::int64_t i = 0; i < block; ++i) {
      const auto scope = model.accumulate(1, i + 1 == block);
      const std::int64_t index = communicator.rank() * block + i;
      ToyPass pass{.a = gradient_of(index)};
      if (index % 3 != 2) pass.b = gradient_of(index + 1000);
      model.pass(pass);
      if (index % 2 == 0) model.pass({.a = gradient_of(index + 2000)});  // scopes may hold several passes
    }
    const std::lock_guard lock(mutex);
    bytes[communicator.rank()] = bytes_of(model.a.grad()) + bytes_of(model.b.grad());
  });
  for (const auto& [rank, one] : bytes) EXPECT_EQ(one, bytes[0]) << "rank " << rank;
  return bytes[0];
}

TEST(ReproducibleSums, AreEqualOnOneTwoFourAndEightRanks) {
  const std::string alone = mean_over(1, 8);
  for (const int ranks : {2, 4, 8}) EXPECT_EQ(mean_over(ranks, 8), alone) << ranks << " ranks";
}

TEST(ReproducibleSums, AreEqualOnOneThreeAndSixRanks) {
  const std::string alone = mean_over(1, 12);
  for (const int ranks : {3, 6, 12}) EXPECT_EQ(mean_over(ranks, 12), alone) << ranks << " ranks";
}

TEST(ReproducibleSums, AWindowWithoutPassesLeavesNoMicroBatches) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    ToyModel model(communicator, {.reproducible = true});
    for (const bool trains : {false, false, true}) {
      for (const bool last : {false, true}) {
        const auto scope = model.accumulate(1, last);
        if (trains) model.pass({.a = 4});
      }
    }
    model.expect_gradient(model.a, 4);
  });
}

TEST(ReproducibleSums, AGradientOfAnEarlierScopeKeepsItsValues) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    ToyModel model(communicator, {.reproducible = true});
    at::Tensor held;
    for (const int number : {0, 1, 2, 3}) {
      const auto scope = model.accumulate(1, number == 3);
      if (number > 0) continue;  // scopes without a pass
      model.pass({.a = 4});
      held = model.a.grad();
    }
    EXPECT_TRUE(at::equal(held, at::full_like(held, 4)));
  });
}

TEST(ReproducibleSums, AChangedLossScaleAppliesToEarlierMicroBatches) {
  for (const int ranks : {1, 2}) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel model(communicator, {.reproducible = true});
      for (const double scale : {2.0, 8.0}) {
        const auto scope = model.accumulate(1, scale == 8);
        model.pass({.a = 4, .loss_scale = scale});
      }
      model.expect_gradient(model.a, 4);
    });
  }
}

TEST(ReproducibleSums, PairwiseSumsFollowABinaryCounter) {
  sync::PairwiseAccumulator partial;
  for (int i = 0; i < 7; ++i) partial.push({at::full({2}, double(1 << i))}, {i == 3, false});
  const at::Tensor last = at::full({2}, 128.0);
  partial.add_to(last, 0);
  EXPECT_TRUE(at::equal(last, at::full({2}, 255.0)));
  EXPECT_TRUE(partial.used(0));
  EXPECT_FALSE(partial.used(1));
  EXPECT_EQ(partial.micro_batches(), 7);
}

class ReproducibleRefuses : public testing::TestWithParam<int> {};  // the number of ranks

TEST_P(ReproducibleRefuses, WhatWouldBreakThePromise) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    const ReducerOptions options{.reproducible = true};
    ToyModel model(communicator, options);
    EXPECT_THROW(model.pass({.a = 1}), UsageError);  // outside accumulate()
    EXPECT_NO_THROW(model.optimizer.zero_grad());
    EXPECT_THROW(model.reducer->synchronize(), UsageError);
    EXPECT_THROW(model.reducer->trigger_sync_in_backward(), UsageError);
    EXPECT_THROW(model.reducer->set_local(true), UsageError);
    EXPECT_THROW(model.reducer->enter_accumulate({.sync_each_batch = true}), UsageError);
    EXPECT_THROW(model.reducer->enter_accumulate({.weight = 0.1}), UsageError);  // sums would depend on their order
    {
      const auto scope = model.accumulate(1, false);
      model.pass({.a = 1});
    }
    EXPECT_THROW(model.optimizer.step(), UsageError);  // in the middle of a window
    model.optimizer.zero_grad();
    {
      const auto scope = model.accumulate(1, true);
      model.pass({.a = 1});
      model.optimizer.step();
      EXPECT_THROW(model.pass({.a = 1}), UsageError);  // after the sum was taken
    }
  });
}

TEST_P(ReproducibleRefuses, BlocksThatCannotBeSummedAnywhere) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    ToyModel model(communicator, {.reproducible = true});
    for (int i = 0; i < 2; ++i) {
      const auto scope = model.accumulate(1, false);
      model.pass({.a = 1});
    }
    if (communicator.size() == 1) {
      EXPECT_NO_THROW(model.reducer->enter_accumulate({}));
    } else {
      EXPECT_THROW(model.reducer->enter_accumulate({}), UsageError);  // 3 is not a power of two
    }
  });
}

TEST_P(ReproducibleRefuses, GradientsRoundedByACodec) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    const at::Tensor half = at::zeros({3}, at::kBFloat16).requires_grad_();
    EXPECT_THROW(Reducer({{.name = "half", .tensor = half}}, communicator.duplicate("half"), {.reproducible = true}),
                 UsageError);
    const at::Tensor whole = at::zeros({3}).requires_grad_();
    EXPECT_THROW(Reducer({{.name = "whole", .tensor = whole}}, communicator.duplicate("whole"),
                         {.gradient_codec = bf16_codec(), .reproducible = true}),
                 UsageError);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReproducibleRefuses, testing::Values(1, 2));

}  // namespace
}  // namespace tutti::test::reproducible_sums_test
