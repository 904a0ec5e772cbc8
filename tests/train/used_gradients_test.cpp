// Gradients in a checkpoint. Gradients of an open window are saved for each rank, and gradients that a step has used
// are saved once. 1 to 3 ranks as threads.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::used_gradients_test {
namespace {

/// Every rank reads the same samples, so that the result does not depend on their number.
struct LinearRun {
  explicit LinearRun(const Communicator& communicator)
      : accelerator({.sync_policy = SyncPolicy::every_pass, .communicator = communicator}),
        net(torch::nn::Linear(3, 2)),
        optimizer((fill(*net, 5), std::get<1>(accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1))))) {}

  void backward(std::uint64_t batch) { accelerator.backward(net(random_tensor({4, 3}, batch)).square().mean()); }

  Accelerator accelerator;
  torch::nn::Linear net;
  Optimizer optimizer;
};

// The run is saved after a step. The next pass adds to the gradients that the step has used.
TEST(UsedGradients, AreSavedOnceAndGoOnOnAnyNumberOfRanks) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = scratch.path() / "checkpoint";
  std::vector<at::Tensor> expected;
  run_thread_ranks(2, [&](const Communicator& communicator) {
    LinearRun run(communicator);
    run.backward(1);
    run.optimizer.step();
    run.accelerator.save_state({.folder = folder});
    run.backward(2);
    run.optimizer.step();
    if (communicator.rank() == 0) {
      for (const at::Tensor& parameter : run.net->parameters()) expected.push_back(parameter.detach().clone());
    }
  });

  const Checkpoint saved = read_checkpoint(folder);
  ASSERT_TRUE(saved.shared.contains("used_gradients_0"));
  const StateDict used = saved.shared.at("used_gradients_0").part("gradient");
  EXPECT_EQ(used.values().size(), 2U);
  ASSERT_EQ(saved.per_rank.size(), 2U);
  for (const StateDict& own : saved.per_rank) {
    EXPECT_TRUE(own.part("window_0").contains("consumed"));
    EXPECT_TRUE(own.part("window_0").part("gradient").empty());
  }
  for (const int size : {1, 2, 3}) {
    run_thread_ranks(size, [&](const Communicator& communicator) {
      LinearRun run(communicator);
      run.accelerator.load_state(folder);
      run.backward(2);
      run.optimizer.step();
      EXPECT_TRUE(close(run.net->parameters(), expected)) << size << " ranks";
    });
  }
}

TEST(UsedGradients, ThoseOfAWindowThatIsNotOverAreEachRanksOwn) {
  const TemporaryFolder scratch;
  run_thread_ranks(2, [&](const Communicator& communicator) {
    LinearRun run(communicator);
    const auto local = run.accelerator.no_sync(run.net);
    run.backward(static_cast<std::uint64_t>(communicator.rank()));
    run.accelerator.save_state({.folder = scratch.path() / "checkpoint"});
  });
  const Checkpoint saved = read_checkpoint(scratch.path() / "checkpoint");
  EXPECT_FALSE(saved.shared.contains("used_gradients_0"));
  for (const StateDict& own : saved.per_rank) {
    const StateDict pending = own.part("window_0").part("gradient");
    EXPECT_EQ(pending.values().size(), 2U);
  }
}

// One rank has cleared its gradients, so they are not equal on all ranks and are saved for each rank.
TEST(UsedGradients, AreEachRanksOwnWhereOneHasDroppedThem) {
  const TemporaryFolder scratch;
  run_thread_ranks(2, [&](const Communicator& communicator) {
    LinearRun run(communicator);
    run.backward(1);
    run.optimizer.step();
    if (communicator.rank() == 0) run.optimizer.zero_grad();
    run.accelerator.save_state({.folder = scratch.path() / "checkpoint"});
  });
  const Checkpoint saved = read_checkpoint(scratch.path() / "checkpoint");
  EXPECT_FALSE(saved.shared.contains("used_gradients_0"));
  EXPECT_TRUE(saved.per_rank[0].part("window_0").part("gradient").empty());
  EXPECT_FALSE(saved.per_rank[1].part("window_0").part("gradient").empty());
}

}  // namespace
}  // namespace tutti::test::used_gradients_test
