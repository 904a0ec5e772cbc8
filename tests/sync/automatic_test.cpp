// The automatic policy learns to synchronize the plain loop once per optimizer step. The result is that of one process
// for any lengths of windows.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/optim/optimizer.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::test::automatic_test {
namespace {

/// Runs windows of the given lengths on `communicator`, and the same micro-batches on a model of one process. Compares
/// parameters after each step.
SyncStats run_windows(const Communicator& communicator, const std::vector<int>& lengths, SyncPolicy policy) {
  Mlp reference;
  Mlp model;
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  const auto reducer = std::make_shared<Reducer>(named_parameters_of(*model), communicator.duplicate("test"),
                                                 ReducerOptions{.policy = policy});
  Optimizer optimizer(std::make_shared<torch::optim::SGD>(model->parameters(), 0.1), reducer);
  std::int64_t next = 0;
  for (std::size_t window = 0; window < lengths.size(); ++window) {
    for (int pass = 0; pass < lengths[window]; ++pass, next += communicator.size()) {
      for (int rank = 0; rank < communicator.size(); ++rank) {
        const Batch batch = batch_of(next + rank);
        const double divisor = static_cast<double>(lengths[window]) * communicator.size();
        (loss_of(reference->forward(batch.input), batch.target) / divisor).backward();
      }
      const Batch batch = batch_of(next + communicator.rank());
      (loss_of(model->forward(batch.input), batch.target) / static_cast<double>(lengths[window])).backward();
    }
    reference_optimizer.step();
    reference_optimizer.zero_grad();
    optimizer.step();
    optimizer.zero_grad();
    EXPECT_TRUE(close(model->parameters(), reference->parameters(), 1e-6)) << "window " << window;
  }
  return reducer->stats();
}

const RankCase learns_the_window("learns_the_window", [](const Communicator& communicator) {
  const SyncStats stats = run_windows(communicator, {4, 4, 4, 4, 4, 4}, SyncPolicy::automatic);
  // All passes of two windows, the first pass of the third window (whose header brings the agreement) and its last
  // pass, then one pass per window.
  EXPECT_EQ(stats.syncs, 4 + 4 + 2 + 1 + 1 + 1);
  EXPECT_EQ(stats.syncs_skipped, 2 + 3 + 3 + 3);
  EXPECT_EQ(stats.syncs_in_step, 0);
});
TEST(Automatic, LearnsToSynchronizeOncePerStep) {
  learns_the_window.everywhere();
}

const RankCase shorter_window("shorter_window", [](const Communicator& communicator) {
  const SyncStats stats = run_windows(communicator, {4, 4, 4, 1, 4}, SyncPolicy::automatic);
  EXPECT_EQ(stats.syncs, 4 + 4 + 2 + 1 + 1);
  EXPECT_EQ(stats.syncs_in_step, 1);
});
TEST(Automatic, AShorterWindowIsSynchronizedInsideStep) {
  shorter_window.everywhere();
}

const RankCase longer_window("longer_window", [](const Communicator& communicator) {
  const SyncStats stats = run_windows(communicator, {2, 2, 2, 7, 2}, SyncPolicy::automatic);
  EXPECT_EQ(stats.syncs, 2 + 2 + 2 + 2 + 1);
  EXPECT_EQ(stats.syncs_in_step, 1);
});
TEST(Automatic, ALongerWindowCostsOneMoreSync) {
  longer_window.everywhere();
}

const RankCase lasting_change("lasting_change", [](const Communicator& communicator) {
  const SyncStats stats = run_windows(communicator, {2, 2, 2, 3, 3, 3, 3}, SyncPolicy::automatic);
  // The third window of 3 synchronizes after its second pass as before. The policy learns from that round, and the
  // window synchronizes again after its last pass.
  EXPECT_EQ(stats.syncs_in_step, 2);
});
TEST(Automatic, FollowsALastingChange) {
  lasting_change.on_threads({1, 2, 3});
}

const RankCase every_pass("every_pass", [](const Communicator& communicator) {
  EXPECT_EQ(run_windows(communicator, {3, 1, 2}, SyncPolicy::every_pass).syncs, 6);
});
TEST(EveryPass, SynchronizesEachPass) {
  every_pass.on_threads({1, 2, 3});
}

TEST(Automatic, HandClippingAfterTheLastPassWorks) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    Mlp model;
    const auto reducer = std::make_shared<Reducer>(named_parameters_of(*model), communicator.duplicate("test"),
                                                   ReducerOptions{.policy = SyncPolicy::automatic});
    Optimizer optimizer(std::make_shared<torch::optim::SGD>(model->parameters(), 0.1), reducer);
    for (int window = 0; window < 4; ++window) {
      for (int pass = 0; pass < 2; ++pass) {
        const Batch batch = batch_of(2 * pass + communicator.rank());
        loss_of(model->forward(batch.input), batch.target).backward();
      }
      for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad().mul_(0.5);
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(reducer->stats().syncs_in_step, 0);
  });
}

}  // namespace
}  // namespace tutti::test::automatic_test
