// AcceleratorOptions::reproducible: the same parameter bytes on 1, 2, 4 and 8 ranks, dropout and clipping included.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "support/ranks.h"
#include "train/reproducible.h"
#include "train/training_run.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/crc32c.h"
#include "tutti/optim/schedules.h"

namespace tutti::test::reproducible_test {
namespace {

// Ranks are processes, because each rank has its own random generator. A rank prints its result.
const RankProgram trains("reproducible_training", [] {
  const ReproducibleOptions options{.micro_batches = std::atoi(std::getenv("MICRO_BATCHES")),
                                    .seed = 3,
                                    .threads = std::atoi(std::getenv("THREADS"))};
  Accelerator accelerator({.reproducible = options});
  EXPECT_EQ(at::get_num_threads(), options.threads);
  Noisy net;
  auto loader = accelerator.data_loader(Samples{96}, {.batch_size = 2, .shuffle = true, .seed = 1});
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.05), linear_with_warmup(2, 40));
  double norms = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(loss_of(model->forward(batch.input), batch.target));
      norms += accelerator.clip_grad_norm_(model, 0.5).value_or(0);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    }
  }
  const std::string bytes = bytes_of(*net);
  std::printf("digest %08x norms %.17g\n", crc32c(std::as_bytes(std::span(bytes))), norms);
});

/// The distinct lines of the ranks: one line if the ranks agree.
std::set<std::string> digests(int ranks, const std::string& micro_batches, const std::string& threads = "1") {
  const auto results =
      run_processes(trains, ranks, {.variables = {{"MICRO_BATCHES", micro_batches}, {"THREADS", threads}}});
  expect_success(results);
  std::set<std::string> lines;
  for (const RankResult& result : results) {
    const auto begin = result.output.find("digest");
    if (begin != std::string::npos) lines.insert(result.output.substr(begin, result.output.find('\n', begin) - begin));
  }
  return lines;
}

TEST(Reproducible, OneTwoFourAndEightRanksEndWithTheSameBytes) {
  const auto alone = digests(1, "8");
  ASSERT_EQ(alone.size(), 1U);
  for (const int ranks : {2, 4, 8}) EXPECT_EQ(digests(ranks, "8"), alone) << ranks << " ranks";
}

TEST(Reproducible, OneThreeAndSixRanksEndWithTheSameBytes) {
  const auto alone = digests(1, "12");
  ASSERT_EQ(alone.size(), 1U);
  for (const int ranks : {3, 6}) EXPECT_EQ(digests(ranks, "12"), alone) << ranks << " ranks";
}

TEST(Reproducible, WithTwoComputeThreadsToo) {
  const auto alone = digests(1, "4", "2");
  ASSERT_EQ(alone.size(), 1U);
  EXPECT_EQ(digests(2, "4", "2"), alone);
}

TEST(Reproducible, MicroBatchesAreShardedEvenlyInPowersOfTwo) {
  EXPECT_EQ(micro_batches_of_rank({.micro_batches = 8}, 1), 8);
  EXPECT_EQ(micro_batches_of_rank({.micro_batches = 8}, 4), 2);
  EXPECT_EQ(micro_batches_of_rank({.micro_batches = 6}, 1), 6);
  EXPECT_EQ(micro_batches_of_rank({.micro_batches = 6}, 3), 2);
  EXPECT_THROW(micro_batches_of_rank({.micro_batches = 6}, 2), UsageError);  // 3 each
  EXPECT_THROW(micro_batches_of_rank({.micro_batches = 8}, 3), UsageError);
  EXPECT_THROW(micro_batches_of_rank({.micro_batches = 0}, 1), UsageError);
  EXPECT_THROW(micro_batches_of_rank({.micro_batches = 8, .threads = 0}, 1), UsageError);
}

TEST(Reproducible, EveryMicroBatchHasASeedOfItsOwn) {
  std::set<std::uint64_t> seeds;
  for (int window = 0; window < 2; ++window) {
    for (int step = 0; step < 10; ++step) {
      for (int i = 0; i < 8; ++i) seeds.insert(micro_batch_seed({.micro_batches = 8, .seed = 1}, window, step, i));
    }
  }
  seeds.insert(micro_batch_seed({.micro_batches = 8, .seed = 2}, 0, 0, 0));
  EXPECT_EQ(seeds.size(), 161U);
}

TEST(Reproducible, RefusesWhatWouldDependOnTheNumberOfRanks) {
  const ReproducibleOptions eight{.micro_batches = 8};
  EXPECT_THROW(Accelerator({.gradient_accumulation_steps = 4, .reproducible = eight}), UsageError);
  EXPECT_NO_THROW(Accelerator({.gradient_accumulation_steps = 8, .reproducible = eight}));
  Accelerator accelerator({.reproducible = eight});
  EXPECT_THROW(accelerator.data_loader(Samples{33}, {.batch_size = 2}), UsageError);  // two steps and a sample
  EXPECT_THROW(accelerator.data_loader(Samples{32}, {.batch_size = 2, .split_batches = true}), UsageError);
  EXPECT_THROW(accelerator.data_loader(Samples{32}, {.batch_size = 2, .sharding = Sharding::batches}), UsageError);
  EXPECT_NO_THROW(accelerator.data_loader(Samples{32}, {.batch_size = 2}));
}

// 500 samples in batches of 25 are two steps of 200 and 100 samples.
TEST(Reproducible, ALoaderForEvaluationNeedNotFillSteps) {
  for (const int ranks : {1, 2}) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      Accelerator accelerator({.reproducible = ReproducibleOptions{.micro_batches = 8}, .communicator = communicator});
      Noisy net(0);
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.05));
      EXPECT_THROW(accelerator.data_loader(Samples{500}, {.batch_size = 25}), UsageError);
      auto loader = accelerator.data_loader(Samples{500}, {.batch_size = 25, .evaluation = true});
      std::int64_t samples = 0;
      for (auto& batch : loader) samples += accelerator.gather_for_metrics(batch.target).size(0);
      EXPECT_EQ(samples, 500);
      auto split = accelerator.data_loader(Samples{10}, {.batch_size = 4, .split_batches = true, .evaluation = true});
      for (auto& batch : split) {
        EXPECT_THROW((void)accelerator.accumulate(model), UsageError);
        EXPECT_THROW(accelerator.backward(loss_of(model->forward(batch.input), batch.target)), UsageError);
        break;
      }
    });
  }
}

}  // namespace
}  // namespace tutti::test::reproducible_test
