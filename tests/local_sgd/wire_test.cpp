// bf16 and int8 against fp32: bytes, precision, equal bits, error feedback. 1 to 4 ranks as threads, 2 as processes.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "local_sgd/local_run.h"
#include "local_sgd/mean_exchange.h"
#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"

namespace tutti::test::wire_test {
namespace {

constexpr std::int64_t elements = 40'000;

/// Trains one large tensor for three rounds.
struct LargeRun {
  LargeRun(const Communicator& communicator, const LocalSgdAlgorithmOptions& options)
      : rank(communicator.rank()),
        parameter(at::zeros({elements}).set_requires_grad(true)),
        algorithm({{"p", parameter}}, {}, nullptr, communicator.duplicate("large"), options) {
    const at::NoGradGuard no_grad;
    for (int step = 0; step < 6; ++step) {
      parameter.sub_(gradient(parameter, 0, rank, step), 0.1);
      algorithm.step(1 + rank);
    }
  }

  int rank;
  at::Tensor parameter;
  LocalSgdAlgorithm algorithm;
};

const RankCase compares("wire_compares", [](const Communicator& communicator) {
  for (const auto method : {OuterOptimizer::average, OuterOptimizer::diloco}) {
    const LocalSgdAlgorithmOptions exact{.local_steps = 2, .outer_optimizer = method, .message_bytes = 1 << 16};
    const LargeRun expected(communicator, exact);
    const auto bytes = static_cast<double>(expected.algorithm.stats().bytes_sent);
    const double per_round = 2.0 * 4 * elements * (communicator.size() - 1) / communicator.size();
    EXPECT_NEAR(bytes, 3 * per_round, 100);
    for (const auto& [wire, share] : {std::pair(WireFormat::bf16, 0.51), std::pair(WireFormat::int8, 0.27)}) {
      LocalSgdAlgorithmOptions lossy = exact;
      lossy.wire = wire;
      const LargeRun run(communicator, lossy);
      EXPECT_TRUE(same_on_all_ranks(communicator, {run.parameter}));
      EXPECT_TRUE(close({run.parameter}, {expected.parameter}, 0.02));
      EXPECT_LE(static_cast<double>(run.algorithm.stats().bytes_sent), share * bytes);
      if (communicator.size() > 1) {
        EXPECT_FALSE(same_bits({run.parameter}, {expected.parameter}));
      }
    }
  }
});
TEST(Wire, SendsLessAndStaysCloseToFp32) {
  compares.on_threads({1, 2, 3, 4});
  compares.on_processes({2});
}

// Over many exchanges, the sum of the means plus the residuals equals the sum of the inputs. Error feedback runs at the
// senders and at the owners of slices.
TEST(Wire, ErrorFeedbackKeepsEveryRoundingError) {
  for (const auto format : {WireFormat::bf16, WireFormat::int8}) {
    run_thread_ranks(3, [&](const Communicator& communicator) {
      const std::int64_t count = 1000;
      local_sgd::MeanExchange exchange(communicator, count, format, 1024);
      local_sgd::ExchangeCost cost;
      at::Tensor put_in = at::zeros({count}, at::kDouble), came_out = at::zeros({count}, at::kDouble);
      for (int round = 0; round < 30; ++round) {
        const at::Tensor vector =
            random_tensor({count}, static_cast<std::uint64_t>(std::int64_t{100} * round + communicator.rank()));
        const at::Tensor exact = vector.to(at::kDouble);
        communicator.all_reduce(exact, ReduceOp::mean).wait();
        put_in += exact;
        exchange.run(vector, {.step = round, .weight = 1}, false, cost);
        came_out += vector;
      }
      // The residuals: the mean of the senders' errors, and the owners' errors. A message has 256 elements; each of
      // three ranks owns up to 86.
      at::Tensor owed = exchange.residuals().at(0).second.to(at::kDouble) / 3;
      const at::Tensor of_slices = exchange.residuals().at(1).second;
      for (std::int64_t message = 0; message < 4; ++message) {
        const std::int64_t end = std::min<std::int64_t>(count, 256 * (message + 1));
        const std::int64_t size = end - 256 * message, slice = (size + 2) / 3;
        const std::int64_t begin = 256 * message + slice * communicator.rank();
        const std::int64_t length = std::min(slice, end - begin);
        owed.slice(0, begin, begin + length) += of_slices.slice(0, 86 * message, 86 * message + length);
      }
      communicator.all_reduce(owed, ReduceOp::sum).wait();
      EXPECT_LE(largest_difference({came_out + owed}, {put_in}), 1e-5);
      EXPECT_GT(owed.abs().max().item<double>(), 1e-5);
    });
  }
}

TEST(Wire, MeanDoesNotDependOnTheMessageSize) {
  run_thread_ranks(3, [](const Communicator& communicator) {
    Tensors results;
    for (const std::int64_t message_bytes : {1024, 4096, 1 << 23}) {
      const at::Tensor vector = random_tensor({5003}, static_cast<std::uint64_t>(communicator.rank()));
      local_sgd::ExchangeCost cost;
      local_sgd::MeanExchange(communicator, 5003, WireFormat::fp32, message_bytes)
          .run(vector, {.weight = 1.0 + communicator.rank()}, false, cost);
      results.push_back(vector);
    }
    EXPECT_TRUE(same_bits({results[0]}, {results[1]}));
    EXPECT_TRUE(same_bits({results[0]}, {results[2]}));
    at::Tensor expected = at::zeros({5003});
    for (int rank = 0; rank < 3; ++rank) {
      expected += random_tensor({5003}, static_cast<std::uint64_t>(rank)) * ((1.0 + rank) / 6);
    }
    EXPECT_LE(largest_difference({results[0]}, {expected}), 1e-6);
  });
}

TEST(Wire, AveragesFewerElementsThanRanks) {
  for (const auto wire : {WireFormat::fp32, WireFormat::bf16, WireFormat::int8}) {
    run_thread_ranks(4, [&](const Communicator& communicator) {
      const at::Tensor parameter = at::zeros({2}).set_requires_grad(true);
      LocalSgdAlgorithm algorithm({{"p", parameter}}, {}, nullptr, communicator.duplicate("small"),
                                  {.local_steps = 1, .wire = wire});
      {
        const at::NoGradGuard no_grad;
        parameter.add_(communicator.rank());
      }
      algorithm.step();
      EXPECT_NEAR(parameter[0].item<double>(), 1.5, 0.02);
      EXPECT_TRUE(same_on_all_ranks(communicator, {parameter}));
    });
  }
}

}  // namespace
}  // namespace tutti::test::wire_test
