// Where accumulate() takes the end of the data, if a batch is used in several scopes. Counters without ranks; loops on
// 1, 2 and 3 ranks as threads.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "train/scope_counter.h"
#include "train/training_run.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::end_of_data_test {
namespace {

/// A loop over one loader, as a counter sees it.
struct CountedLoops {
  ScopeCounter counter;
  ScopeCounter::Rule rule;
  std::int64_t loop = 0;
  bool warned = false;

  /// Opens `scopes[i]` scopes on batch i of a loop. Returns one character for each: '|' if it ends a window, else '.'.
  std::string run(const std::vector<int>& scopes, const std::shared_ptr<const int>& loader = {}) {
    std::string ends;
    ++loop;
    LoaderPosition position{.loader = loader, .loop = loop};
    for (std::size_t i = 0; i < scopes.size(); ++i) {
      position.last_batch = i + 1 == scopes.size();
      position.batch = static_cast<std::int64_t>(i) + 1;
      for (int scope = 0; scope < scopes[i]; ++scope) {
        ends += counter.ends_window(position, rule) ? '|' : '.';
        warned = warned || counter.ends_too_many(position, rule);
        counter.open(position, rule);
      }
    }
    left_open = counter.left_open_by(position, rule);
    return ends;
  }
  bool left_open = false;
};

TEST(ScopeCounter, OneScopeABatchEndsWithTheLastBatch) {
  CountedLoops loops{.counter = {}, .rule = {.num_steps = 4}};
  EXPECT_EQ(loops.run({1, 1, 1, 1, 1}), "...||");
  EXPECT_EQ(loops.run({1}), "|");
  EXPECT_EQ(loops.run({1, 1}), ".|");
  EXPECT_FALSE(loops.warned);
  EXPECT_FALSE(loops.left_open);
}

TEST(ScopeCounter, TheLastOfSeveralScopesEndsWithTheLastBatch) {
  CountedLoops loops{.counter = {}, .rule = {.num_steps = 4}};
  std::vector<std::shared_ptr<const int>> loaders;
  for (int i = 0; i < 4; ++i) loaders.push_back(std::make_shared<const int>(i));
  EXPECT_EQ(loops.run({4, 4, 4}, loaders[0]), "...|...|...|");
  EXPECT_EQ(loops.run({3, 3, 3}, loaders[1]), "...|...||");
  EXPECT_EQ(loops.run({2, 2, 2}, loaders[2]), "...|.|");
  EXPECT_FALSE(loops.warned);
  loops.rule.num_steps = 3;
  EXPECT_EQ(loops.run({2, 0, 2, 2}, loaders[3]), "..|..|");
  EXPECT_FALSE(loops.left_open);
}

TEST(ScopeCounter, ALoopOfOneBatchIsKnownFromTheSecondLoopOn) {
  CountedLoops loops{.counter = {}, .rule = {.num_steps = 4}};
  EXPECT_EQ(loops.run({4}), "||||");
  EXPECT_TRUE(loops.warned);
  loops.warned = false;
  EXPECT_EQ(loops.run({4}), "...|");
  EXPECT_FALSE(loops.warned);
  EXPECT_EQ(loops.run({1}, std::make_shared<const int>(0)), "|");  // another loader
  EXPECT_FALSE(loops.warned);
}

TEST(ScopeCounter, AShorterLastBatchIsKnownFromTheSecondLoopOn) {
  CountedLoops loops{.counter = {}, .rule = {.num_steps = 4}};
  EXPECT_EQ(loops.run({4, 4, 3}), "...|...|...");
  EXPECT_TRUE(loops.left_open);
  EXPECT_EQ(loops.run({4, 4, 3}), "|...|...|.|");  // the open window takes the first scope
  EXPECT_EQ(loops.run({4, 4, 3}), "...|...|..|");
  EXPECT_FALSE(loops.left_open);
  EXPECT_FALSE(loops.warned);
}

TEST(ScopeCounter, WithoutARuleEachScopeOfTheLastBatchEndsAWindow) {
  CountedLoops loops{.counter = {}, .rule = {.num_steps = 8}};
  EXPECT_EQ(loops.run({1, 2, 1}), "...|");
  EXPECT_FALSE(loops.warned);
  EXPECT_EQ(loops.run({1, 2, 2}), "...||");
  EXPECT_TRUE(loops.warned);
}

TEST(ScopeCounter, WindowsOfOneScopeAndWindowsAcrossLoopsNeedNoWarning) {
  CountedLoops one{.counter = {}, .rule = {.num_steps = 1}};
  EXPECT_EQ(one.run({3}), "|||");
  EXPECT_FALSE(one.warned);
  CountedLoops across{.counter = {}, .rule = {.num_steps = 4, .sync_with_dataloader = false}};
  EXPECT_EQ(across.run({3}), "...");
  EXPECT_EQ(across.run({3}), "|..");
  EXPECT_FALSE(across.warned);
  EXPECT_FALSE(across.left_open);
}

TEST(ScopeCounter, ContinuesFromACheckpoint) {
  // Saved after the second batch of a loop of three: the loop that continues it has one batch.
  CountedLoops first{.counter = {}, .rule = {.num_steps = 8}};
  const LoaderPosition position{.loop = 1, .batch = 1};
  for (int scope = 0; scope < 3; ++scope) first.counter.open(position, first.rule);
  const StateDict state = ScopeCounter::save(std::vector{first.counter}, 2);
  CountedLoops resumed{.counter = ScopeCounter::load(state, 1, 2, 8).front(), .rule = first.rule};
  EXPECT_EQ(resumed.counter.scopes(), 3);
  EXPECT_EQ(resumed.run({3}), "..|");
  EXPECT_FALSE(resumed.warned);
}

TEST(ScopeCounter, OnAnotherNumberOfRanksMicroBatchesCountOrSplitBatches) {
  ScopeCounter counter;
  const ScopeCounter::Rule rule{.num_steps = 4};
  for (int scope = 0; scope < 3; ++scope) counter.open({}, rule);
  const StateDict of_ranks = ScopeCounter::save(std::vector{counter}, 2);
  EXPECT_EQ(ScopeCounter::load(of_ranks, 1, 3, 4).front().scopes(), 2);
  EXPECT_EQ(ScopeCounter::load(of_ranks, 1, 1, 4).front().scopes(), 3);
  counter.restart_window();
  for (int scope = 0; scope < 3; ++scope) counter.open({.split = true}, rule);
  const StateDict of_all = ScopeCounter::save(std::vector{counter}, 2);
  for (const int ranks : {1, 2, 3, 6}) EXPECT_EQ(ScopeCounter::load(of_all, 1, ranks, 4).front().scopes(), 3);
  EXPECT_THROW(ScopeCounter::load(of_all, 2, 2, 4), CheckpointError);
}

/// Trains on `samples` samples in batches of 12 / ranks on each rank, each cut into pieces of `piece` / ranks samples,
/// with `num_steps` pieces in a step. Returns the number of steps.
struct CutBatches {
  std::int64_t samples = 36;
  std::int64_t piece = 3;
  int num_steps = 4;
  int epochs = 1;

  template <typename AfterBatch>
  int train(Accelerator& accelerator, Noisy& net, const AfterBatch& after_batch) const {
    auto loader = accelerator.data_loader(Samples{samples}, {.batch_size = 12, .split_batches = true});
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    int steps = 0;
    for (int epoch = 0; epoch < epochs; ++epoch) {
      std::int64_t batches = 0;
      for (auto& batch : loader) {
        const auto inputs = batch.input.split(piece / accelerator.num_processes());
        const auto targets = batch.target.split(piece / accelerator.num_processes());
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          const auto window = accelerator.accumulate(model);
          accelerator.backward(loss_of(model->forward(inputs[i]), targets[i]));
          optimizer.step();
          optimizer.zero_grad();
          steps += accelerator.sync_gradients() ? 1 : 0;
        }
        after_batch(++batches);
      }
    }
    return steps;
  }
  int train(Accelerator& accelerator, Noisy& net) const {
    return train(accelerator, net, [](std::int64_t) {});
  }
};

TEST(EndOfData, MicroBatchesCutFromBatchesGiveAStepForEachBatch) {
  // One process whose batches are not cut.
  const CutBatches whole{.piece = 12, .num_steps = 1};
  Noisy expected(0);
  Accelerator alone({.communicator = Communicator()});
  ASSERT_EQ(whole.train(alone, expected), 3);
  for (const int ranks : {1, 3}) {
    testing::internal::CaptureStderr();
    run_thread_ranks(ranks, [&](const Communicator& communicator) {
      Accelerator accelerator({.gradient_accumulation_steps = 4, .communicator = communicator});
      Noisy net(0);
      EXPECT_EQ(CutBatches{}.train(accelerator, net), 3);
      EXPECT_TRUE(close(net->parameters(), expected->parameters(), 1e-5));
    });
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  }
}

TEST(EndOfData, WarnsOnceWhereItCannotBeKnown) {
  const auto steps_and_text = [](const CutBatches& program) {
    testing::internal::CaptureStderr();
    std::vector<int> steps(2);
    run_thread_ranks(2, [&](const Communicator& communicator) {
      Accelerator accelerator({.gradient_accumulation_steps = program.num_steps, .communicator = communicator});
      Noisy net(0);
      steps[communicator.rank()] = program.train(accelerator, net);
    });
    EXPECT_EQ(steps[0], steps[1]);
    return std::pair(steps[0], testing::internal::GetCapturedStderr());
  };
  const auto times = [](const std::string& text, const std::string& part) {
    int count = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
  };
  // A loop of one batch: the first epoch shows how many scopes the batch has.
  const auto [one_batch, of_one_batch] = steps_and_text({.samples = 12, .piece = 6, .num_steps = 2, .epochs = 3});
  EXPECT_EQ(one_batch, 2 + 1 + 1);
  EXPECT_EQ(times(of_one_batch, "ends a window of its own"), 1) << of_one_batch;
  EXPECT_EQ(times(of_one_batch, "ended inside a window"), 0) << of_one_batch;
  // The last batch has 6 of 12 samples, and so 1 of 2 scopes.
  const auto [short_batch, of_short_batch] = steps_and_text({.samples = 30, .piece = 6, .num_steps = 2, .epochs = 1});
  EXPECT_EQ(short_batch, 2);
  EXPECT_EQ(times(of_short_batch, "ended inside a window"), 1) << of_short_batch;
  EXPECT_EQ(times(of_short_batch, "ends a window of its own"), 0) << of_short_batch;
}

// The last batch has 6 of 12 samples. Its second scope has no backward pass.
TEST(EndOfData, AMissingScopeMayBeOpenedWithoutABackwardPass) {
  Noisy expected(0);
  Accelerator alone({.communicator = Communicator()});
  ASSERT_EQ((CutBatches{.samples = 30, .piece = 12, .num_steps = 1}.train(alone, expected)), 3);
  for (const int ranks : {1, 2}) {
    testing::internal::CaptureStderr();
    run_thread_ranks(ranks, [&](const Communicator& communicator) {
      Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
      Noisy net(0);
      auto loader = accelerator.data_loader(Samples{30}, {.batch_size = 12, .split_batches = true});
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      int steps = 0;
      for (auto& batch : loader) {
        const auto inputs = batch.input.split(6 / ranks), targets = batch.target.split(6 / ranks);
        for (std::size_t i = 0; i < 2; ++i) {
          const bool missing = i >= inputs.size();
          const auto window = accelerator.accumulate(model, {.weight = missing ? 0.0 : 1.0});
          if (!missing) accelerator.backward(loss_of(model->forward(inputs[i]), targets[i]));
          optimizer.step();
          optimizer.zero_grad();
          steps += accelerator.sync_gradients() ? 1 : 0;
        }
      }
      EXPECT_EQ(steps, 3);
      EXPECT_TRUE(close(net->parameters(), expected->parameters(), 1e-5));
    });
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  }
}

TEST(EndOfData, AResumedLoopKnowsHowManyScopesABatchHas) {
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "checkpoint";
  const CutBatches program{.num_steps = 8};  // the batches end windows of 8 and of 4 scopes
  Noisy expected(0);
  Accelerator alone({.gradient_accumulation_steps = 8, .communicator = Communicator()});
  ASSERT_EQ(program.train(alone, expected,
                          [&](std::int64_t batches) {
                            if (batches == 2) alone.save_state({.folder = folder});
                          }),
            2);
  Accelerator resumed({.gradient_accumulation_steps = 8, .communicator = Communicator()});
  Noisy net(0);
  auto loader = resumed.data_loader(Samples{36}, {.batch_size = 12, .split_batches = true});
  auto [model, optimizer] = resumed.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  resumed.load_state(folder);
  int steps = 0;
  for (auto& batch : loader) {
    const auto inputs = batch.input.split(3), targets = batch.target.split(3);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto window = resumed.accumulate(model);
      resumed.backward(loss_of(model->forward(inputs[i]), targets[i]));
      optimizer.step();
      optimizer.zero_grad();
      steps += resumed.sync_gradients() ? 1 : 0;
    }
  }
  EXPECT_EQ(steps, 1);
  EXPECT_EQ(bytes_of(*net), bytes_of(*expected));
}

}  // namespace
}  // namespace tutti::test::end_of_data_test
