// DistributedDataParallel against one process that sees all data: the cases of Accelerate's test_sync.py.
#include "tutti/sync/distributed_data_parallel.h"

#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <memory>
#include <sstream>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"

namespace tutti::test::distributed_data_parallel_test {
namespace {

at::Tensor mean_loss(Mlp& model, std::int64_t first, std::int64_t count) {
  at::Tensor loss = at::zeros({});
  for (std::int64_t i = first; i < first + count; ++i) {
    const Batch batch = batch_of(i);
    loss = loss + loss_of(model->forward(batch.input), batch.target) / static_cast<double>(count);
  }
  return loss;
}

/// What a UsageError of `action` says.
template <typename Action>
std::string refusal_of(const Action& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// This rank's micro-batch of round `round`.
Batch own_batch(const Communicator& communicator, int round) {
  return batch_of(static_cast<std::int64_t>(round) * communicator.size() + communicator.rank());
}

const RankCase no_sync_keeps_gradients_local("no_sync_keeps_gradients_local", [](const Communicator& communicator) {
  Mlp reference;
  Mlp model;
  DistributedDataParallel ddp(model, communicator);
  for (int round = 0; round < 3; ++round) {
    mean_loss(reference, round * communicator.size(), communicator.size()).backward();
    const Batch batch = own_batch(communicator, round);
    const bool local = round % 2 == 0;
    {
      const auto quiet = ddp.no_sync(local);
      loss_of(model->forward(batch.input), batch.target).backward();
    }
    const bool equal = close(gradients_of(*model), gradients_of(*reference), 1e-6);
    EXPECT_EQ(equal, !local || communicator.size() == 1) << "round " << round;
  }
});
TEST(DistributedDataParallel, NoSyncKeepsGradientsLocalUntilAPassOutside) {
  no_sync_keeps_gradients_local.everywhere();
}

// Forward passes run under no_sync, backward passes outside: the place of the backward pass decides.
const RankCase trigger_synchronizes("trigger_synchronizes", [](const Communicator& communicator) {
  Mlp reference;
  Mlp model;
  DistributedDataParallel ddp(model, communicator);
  std::vector<at::Tensor> losses;
  for (int round = 0; round < 3; ++round) {
    const auto quiet = ddp.no_sync();
    const Batch batch = own_batch(communicator, round);
    losses.push_back(loss_of(model->forward(batch.input), batch.target));
  }
  for (int round = 0; round < 3; ++round) {
    mean_loss(reference, round * communicator.size(), communicator.size()).backward();
    const bool last = round == 2;
    {
      const auto quiet = ddp.no_sync();
      if (last) ddp.trigger_sync_in_backward();
      losses[round].backward();
    }
    const bool equal = close(gradients_of(*model), gradients_of(*reference), 1e-6);
    EXPECT_EQ(equal, last || communicator.size() == 1) << "round " << round;
  }
});
TEST(DistributedDataParallel, TriggerSynchronizesInsideNoSync) {
  trigger_synchronizes.everywhere();
}

const RankCase every_pass_averages("every_pass_averages", [](const Communicator& communicator) {
  Mlp reference(7);
  Mlp model(7 + communicator.rank());  // different on every rank; the constructor makes replicas equal
  DistributedDataParallel ddp(model, communicator, {.buckets = {.first_bucket_bytes = 64, .bucket_bytes = 256}});
  for (int round = 0; round < 3; ++round) {
    mean_loss(reference, round * communicator.size(), communicator.size()).backward();
    const Batch batch = own_batch(communicator, round);
    loss_of(model->forward(batch.input), batch.target).backward();
    EXPECT_TRUE(close(gradients_of(*model), gradients_of(*reference), 1e-6)) << "round " << round;
    if (round == 1) {
      reference->zero_grad();
      model->zero_grad();
    }
  }
  EXPECT_EQ(ddp.stats().syncs, 3);
});
TEST(DistributedDataParallel, EveryPassLeavesTheMeanInGrad) {
  every_pass_averages.everywhere();
}

// torch::load() replaces the nodes of all parameters, so no pass reaches the reducer.
const RankCase loading_is_found("loading_is_found", [](const Communicator& communicator) {
  Mlp model;
  std::stringstream file;
  torch::save(model, file);
  const DistributedDataParallel ddp(model, communicator);
  torch::load(model, file);
  const Batch batch = own_batch(communicator, 0);
  const at::Tensor loss = loss_of(model->forward(batch.input), batch.target);
  const std::string said = refusal_of([&] { loss.backward(); });
  EXPECT_NE(said.find("'second.bias' of MlpImpl was changed after prepare(): its node"), std::string::npos) << said;
});
TEST(DistributedDataParallel, AModelThatTorchLoadHasReadIsRefused) {
  loading_is_found.everywhere();
}

const RankCase second_is_refused("second_is_refused", [](const Communicator& communicator) {
  Mlp model;
  const auto pass = [&](int round) {
    const Batch batch = own_batch(communicator, round);
    loss_of(model->forward(batch.input), batch.target).backward();
  };
  auto ddp = std::make_unique<DistributedDataParallel>(model, communicator);
  {
    const DistributedDataParallel of_a_part(model->second, communicator);
    const std::string said = refusal_of([&] { pass(0); });
    EXPECT_NE(said.find("one DistributedDataParallel or Accelerator"), std::string::npos) << said;
  }
  // The old one is destroyed before the first pass.
  ddp = std::make_unique<DistributedDataParallel>(model, communicator);
  model->zero_grad();
  pass(1);
  Mlp reference;
  mean_loss(reference, communicator.size(), communicator.size()).backward();
  EXPECT_TRUE(close(gradients_of(*model), gradients_of(*reference), 1e-6));
});
TEST(DistributedDataParallel, ASecondOneOverTheSameParametersIsRefused) {
  second_is_refused.everywhere();
}

}  // namespace
}  // namespace tutti::test::distributed_data_parallel_test
