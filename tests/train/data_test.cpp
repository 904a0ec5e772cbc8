// The Accelerator and its data: loaders that ranks agree on, uneven data, streams.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "data/streams.h"
#include "optim/refused.h"
#include "support/rank_case.h"
#include "train/trainer_run.h"
#include "train/training_run.h"
#include "tutti/core/error.h"
#include "tutti/train/local_sgd.h"

namespace tutti::test::data_test {
namespace {

using Numbers = std::vector<std::int64_t>;

/// The loss summed over samples [first, first + count).
at::Tensor summed_loss(Mlp& model, const Batch& batch) {
  return loss_of(model->forward(batch.input), batch.target) * batch.input.size(0);
}

Batch samples(const Numbers& numbers) {
  return Samples{1}.get_batch({numbers.begin(), numbers.end()});
}

/// One step of one process on the mean over these samples.
void reference_step(Mlp& model, torch::optim::SGD& optimizer, const Numbers& numbers) {
  optimizer.zero_grad();
  (summed_loss(model, samples(numbers)) / static_cast<double>(numbers.size())).backward();
  optimizer.step();
}

Numbers range(std::int64_t first, std::int64_t end) {
  Numbers numbers;
  for (auto i = first; i < end; ++i) numbers.push_back(i);
  return numbers;
}

std::vector<at::Tensor> parameters_of(const Mlp& model) {
  return model->parameters();
}

// test_can_join_uneven_inputs. Unlike Accelerate, windows end together and a step is the mean over the actual samples.
const RankCase joined("train_joined", [](const Communicator& communicator) {
  const std::int64_t ranks = communicator.size();
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  // Two batches of 2 on every rank, then 3 samples more: rank 0 gets 2 or 3 batches, the last ones not full.
  const std::int64_t count = 4 * ranks + 1;
  auto loader = accelerator.data_loader(Samples{count}, {.batch_size = 2, .even_batches = false});
  std::vector<bool> synchronized;
  std::vector<bool> on_filler;
  for (int epoch = 0; epoch < 2; ++epoch) {
    const auto join = accelerator.join_uneven_inputs();
    EXPECT_EQ(loader.size(), 3);
    for (auto& batch : loader) {
      const auto window = accelerator.accumulate({.weight = static_cast<double>(batch.input.size(0))}, model);
      accelerator.backward(summed_loss(model, batch));
      optimizer.step();
      optimizer.zero_grad();
      synchronized.push_back(accelerator.sync_gradients());
      on_filler.push_back(accelerator.on_filler_batch());
    }
  }
  EXPECT_EQ(synchronized, (std::vector<bool>{false, true, true, false, true, true}));
  const bool last = communicator.rank() > 0;
  EXPECT_EQ(on_filler, (std::vector<bool>{false, false, last, false, false, last}));

  Mlp reference;
  torch::optim::SGD sgd(reference->parameters(), 0.1);
  for (int epoch = 0; epoch < 2; ++epoch) {
    reference_step(reference, sgd, range(0, 4 * ranks));
    reference_step(reference, sgd, {4 * ranks});
  }
  EXPECT_TRUE(close(parameters_of(model), parameters_of(reference)));
});
TEST(JoinUnevenInputs, StepsAreMeansOverWhatThereIs) {
  joined.everywhere();
}
TEST(JoinUnevenInputs, AcrossNodesToo) {
  expect_success(run_processes(joined.program(), 2, {.num_nodes = 2}));
}

const RankCase joined_plain("train_joined_plain", [](const Communicator& communicator) {
  const std::int64_t ranks = communicator.size();
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto loader = accelerator.data_loader(Samples{ranks + 1}, {.batch_size = 1});
  Mlp reference;
  torch::optim::SGD sgd(reference->parameters(), 0.1);
  std::int64_t step = 0;
  const auto join = accelerator.join_uneven_inputs(false);  // overrides even_batches
  for (auto& batch : loader) {
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
    // The mean over ranks, as DistributedDataParallel divides: a rank without data contributes 0.
    sgd.zero_grad();
    const Numbers numbers = step++ == 0 ? range(0, ranks) : Numbers{ranks};
    (summed_loss(reference, samples(numbers)) / static_cast<double>(ranks)).backward();
    sgd.step();
  }
  EXPECT_EQ(step, 2);
  EXPECT_TRUE(close(parameters_of(model), parameters_of(reference)));
});
TEST(JoinUnevenInputs, PlainLoopsAddNothing) {
  joined_plain.everywhere();
}

const RankCase refused("train_uneven_refused", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto loader = accelerator.data_loader(Samples{communicator.size() + 1}, {.batch_size = 1, .even_batches = false});
  for (auto& batch : loader) {
    if (communicator.size() == 1) continue;
    EXPECT_THROW(static_cast<void>(accelerator.accumulate(model)), UsageError);
    EXPECT_THROW(accelerator.backward(loss_of(model->forward(batch.input), batch.target)), UsageError);
    optimizer.zero_grad();
    break;
  }
  // Evaluation needs no scope.
  std::int64_t batches = 0;
  for ([[maybe_unused]] auto& batch : loader) ++batches;
  EXPECT_EQ(batches, communicator.rank() == 0 ? 2 : 1);

  const auto join = accelerator.join_uneven_inputs();
  for (auto& batch : loader) {
    if (!accelerator.on_filler_batch()) continue;
    EXPECT_THROW(loss_of(model->forward(batch.input), batch.target).backward(), UsageError);
    optimizer.zero_grad();
  }
});
TEST(JoinUnevenInputs, WhatWouldLeaveRanksWaitingIsRefusedOnAllOfThem) {
  refused.everywhere();
}

const RankCase with_local_sgd("train_uneven_local_sgd", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  {
    const auto join = accelerator.join_uneven_inputs(false);
    expect_refused<UsageError>([&] { LocalSGD(accelerator, net); }, "LocalSGD in join_uneven_inputs()");
    LocalSGD(accelerator, net, {.enabled = false});
    const auto even = accelerator.join_uneven_inputs(true);
    LocalSGD(accelerator, net);
  }
  for (const std::int64_t warmup_steps : {0, 2}) {
    const LocalSGD local_sgd(accelerator, net, {.local_sgd_steps = 4, .algorithm = {.warmup_steps = warmup_steps}});
    expect_refused<UsageError>([&] { static_cast<void>(accelerator.join_uneven_inputs()); },
                               "join_uneven_inputs() before the end of LocalSGD");
  }
  const auto join = accelerator.join_uneven_inputs();
});
TEST(JoinUnevenInputs, IsRefusedTogetherWithLocalSGD) {
  with_local_sgd.on_threads({1, 2});
}

const RankCase differ("train_loaders_differ", [](const Communicator& communicator) {
  if (communicator.size() == 1) return;
  Accelerator accelerator({.communicator = communicator});
  const bool other = communicator.rank() == 1;
  EXPECT_THROW(accelerator.data_loader(Samples{other ? 9 : 10}), MismatchError);
  EXPECT_THROW(accelerator.data_loader(Samples{10}, {.batch_size = other ? 2 : 3}), MismatchError);
  EXPECT_THROW(accelerator.data_loader(Counting(3), {.drop_last = other}), MismatchError);
  if (other) {
    EXPECT_THROW(accelerator.data_loader(Samples{0}), UsageError);
  } else {
    EXPECT_THROW(accelerator.data_loader(Samples{10}), PeerError);
  }
  EXPECT_EQ(accelerator.data_loader(Samples{10}).size(), (10 + communicator.size() - 1) / communicator.size());
});
TEST(AcceleratorData, LoadersOfOtherDataAreAMismatchError) {
  differ.everywhere();
}

TEST(AcceleratorData, PutsBatchesOnItsDevice) {
  Accelerator accelerator({.device = at::kMeta, .communicator = Communicator()});
  struct Tensors {
    std::size_t size() const { return 4; }
    at::Tensor get_batch(const std::vector<std::size_t>& indices) const {
      return at::ones({static_cast<std::int64_t>(indices.size())});
    }
  };
  auto loader = accelerator.data_loader(Tensors{}, {.batch_size = 2});
  for (const auto& batch : loader) EXPECT_TRUE(batch.is_meta());
  auto elsewhere = accelerator.data_loader(Tensors{}, {.batch_size = 2, .device = at::kCPU});
  for (const auto& batch : elsewhere) EXPECT_TRUE(batch.is_cpu());
}

const RankCase streams("train_on_streams", [](const Communicator& communicator) {
  const int ranks = communicator.size();
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto loader = accelerator.data_loader(Counting(6 * ranks), {.batch_size = 2, .num_workers = 1});
  std::vector<bool> synchronized;
  for (auto& numbers : loader) {
    const auto window = accelerator.accumulate(model);
    const Batch batch = samples({numbers.begin(), numbers.end()});
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
    synchronized.push_back(accelerator.sync_gradients());
  }
  EXPECT_EQ(synchronized, (std::vector<bool>{false, true, true}));  // the window ends with the stream

  Mlp reference;
  torch::optim::SGD sgd(reference->parameters(), 0.1);
  reference_step(reference, sgd, range(0, 4 * ranks));
  reference_step(reference, sgd, range(4 * ranks, 6 * ranks));
  EXPECT_TRUE(close(parameters_of(model), parameters_of(reference)));
});
TEST(AcceleratorData, TrainsOnStreams) {
  streams.everywhere();
}

const RankCase saved_stream("train_stream_resumes", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object((scratch.path() / "saved").string());
  const auto loader_of = [](Accelerator& accelerator) {
    return accelerator.data_loader(Counting(50), {.batch_size = 3, .num_workers = 1});
  };
  Mlp model;  // a checkpoint needs a prepared object
  Accelerator first({.communicator = communicator});
  first.prepare(model);
  auto interrupted = loader_of(first);
  std::vector<std::vector<int>> rest;
  for (const auto& batch : interrupted) {
    if (interrupted.cursor()->batch_index() > 2) rest.push_back(batch);
    if (interrupted.cursor()->batch_index() == 2) first.save_state({.folder = folder});
  }
  Accelerator second({.communicator = communicator});
  Mlp model_again;
  second.prepare(model_again);
  auto resumed = loader_of(second);
  second.load_state(folder);
  std::vector<std::vector<int>> received;
  for (const auto& batch : resumed) received.push_back(batch);
  EXPECT_EQ(received, rest);
  first.wait_for_everyone();
});
TEST(AcceleratorData, StreamsResumeAtTheirBatch) {
  saved_stream.on_threads({1, 2, 3});
}

const RankCase joined_trainer("train_joined_trainer", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto loader = accelerator.data_loader(Samples{4 * communicator.size() + 1}, {.batch_size = 2, .even_batches = false});
  Trainer trainer(accelerator, model, optimizer, std::nullopt, loader,
                  TrainerFunctions<Mlp, Batch>{
                      .loss = [](Mlp& of, Batch& batch) { return summed_loss(of, batch); },
                      .weight = [](const Batch& batch) { return static_cast<double>(batch.input.size(0)); },
                      .samples = [](const Batch& batch) { return batch.input.size(0); }},
                  quiet({.max_epochs = 2}));
  const auto join = accelerator.join_uneven_inputs();
  trainer.fit();
  EXPECT_EQ(trainer.global_step(), 4);
  // The steps of the loop above are means over the actual samples.
  Mlp reference;
  torch::optim::SGD sgd(reference->parameters(), 0.1);
  for (int epoch = 0; epoch < 2; ++epoch) {
    reference_step(reference, sgd, range(0, 4 * communicator.size()));
    reference_step(reference, sgd, {4 * communicator.size()});
  }
  EXPECT_TRUE(close(parameters_of(model), parameters_of(reference)));
});
TEST(JoinUnevenInputs, GoesWithATrainer) {
  joined_trainer.on_threads({1, 2, 3});
}

}  // namespace
}  // namespace tutti::test::data_test
