// A run with split_batches that is saved inside a window ends on another number of ranks as the uninterrupted run does.
// 1, 2 and 3 ranks as threads.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "train/training_run.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::split_resume_test {
namespace {

struct Pause {
  std::filesystem::path folder;
  std::int64_t after = 0;  // batches of the epoch
};

/// 54 samples in batches of 6 over all ranks, 4 batches in a step: steps of 24, 24 and 6 samples.
struct SplitRun {
  int ranks = 1;
  /// Losses are sums, weighed by their numbers of samples.
  bool weights = false;
  bool shuffle = true;

  /// Trains an epoch, or the rest of one after `resumed`, up to `pause`. Returns the parameters and the number of
  /// steps.
  std::pair<std::vector<at::Tensor>, int> train(const std::optional<Pause>& resumed,
                                                const std::optional<Pause>& pause) const {
    std::vector<at::Tensor> parameters;
    int steps = 0;
    std::mutex mutex;
    run_thread_ranks(ranks, [&](const Communicator& communicator) {
      Accelerator accelerator({.gradient_accumulation_steps = 4, .communicator = communicator});
      auto loader =
          accelerator.data_loader(Samples{54}, {.batch_size = 6, .shuffle = shuffle, .seed = 3, .split_batches = true});
      Noisy net(0);
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.05));
      if (resumed) accelerator.load_state(resumed->folder);
      int here = 0;
      for (auto& batch : loader) {
        {
          const auto samples = static_cast<double>(batch.input.size(0));
          const auto window =
              accelerator.accumulate(model, {.weight = weights ? std::optional(samples) : std::optional<double>()});
          const at::Tensor loss = loss_of(model->forward(batch.input), batch.target);
          accelerator.backward(weights ? loss * samples : loss);
          optimizer.step();
          optimizer.zero_grad();
          here += accelerator.sync_gradients() ? 1 : 0;
        }
        if (pause && loader.cursor()->batch_index() == pause->after) {
          accelerator.save_state({.folder = pause->folder});
          break;
        }
      }
      const std::lock_guard lock(mutex);
      if (communicator.rank() != 0) return;
      steps = here;
      for (const at::Tensor& parameter : net->parameters()) parameters.push_back(parameter.detach().clone());
    });
    return {parameters, steps};
  }
};

TEST(SplitResume, AWindowGoesOnWithTheSameSamplesAndWeights) {
  for (const bool weights : {false, true}) {
    const auto [expected, steps] = SplitRun{.ranks = 1, .weights = weights}.train({}, {});
    ASSERT_EQ(steps, 3);
    for (const auto& [before, after] : {std::pair{2, 3}, {2, 1}, {3, 2}, {1, 3}}) {
      for (const std::int64_t batches : {3, 5}) {
        SCOPED_TRACE(std::to_string(before) + " to " + std::to_string(after) + " ranks after " +
                     std::to_string(batches) + " batches" + (weights ? ", with weights" : ""));
        const TemporaryFolder scratch;
        const Pause pause{.folder = scratch.path() / "saved", .after = batches};
        const int first = SplitRun{.ranks = before, .weights = weights}.train({}, pause).second;
        const auto [parameters, rest] = SplitRun{.ranks = after, .weights = weights}.train(pause, {});
        EXPECT_EQ(first + rest, 3);
        EXPECT_TRUE(close(parameters, expected, 1e-5));
      }
    }
  }
}

}  // namespace
}  // namespace tutti::test::split_resume_test
