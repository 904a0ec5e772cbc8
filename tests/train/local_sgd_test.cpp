// LocalSGD in the documents' loop, on 1 to 4 ranks.
#include "tutti/train/local_sgd.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <atomic>

#include "optim/refused.h"
#include "support/rank_case.h"
#include "train/training_run.h"
#include "tutti/core/error.h"
#include "tutti/optim/schedules.h"

namespace tutti::test::local_sgd_test {
namespace {

constexpr double rate = 0.1;

/// Local SGD by hand: all ranks' models in one process. `pass` counts micro-batches of a rank.
struct ByHand {
  explicit ByHand(int ranks) : models(static_cast<std::size_t>(ranks)) {}

  /// One optimizer step of each rank over `accumulation` micro-batches.
  void step(std::int64_t number, int accumulation) {
    const auto ranks = static_cast<std::int64_t>(models.size());
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      Mlp& model = models[static_cast<std::size_t>(rank)];
      model->zero_grad();
      for (int i = 0; i < accumulation; ++i) {
        const Batch batch = batch_of((number * accumulation + i) * ranks + rank);
        (loss_of(model->forward(batch.input), batch.target) / accumulation).backward();
      }
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.sub_(parameter.grad(), rate);
    }
  }
  void average() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < models[0]->parameters().size(); ++i) {
      at::Tensor sum = at::zeros_like(models[0]->parameters()[i], at::kDouble);
      for (const Mlp& model : models) sum += model->parameters()[i];
      for (const Mlp& model : models) model->parameters()[i].copy_(sum / static_cast<double>(models.size()));
    }
  }
  std::vector<Mlp> models;
};

std::vector<at::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : module.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

// The guide's loop: accumulation over two batches, an average every three optimizer steps, seven steps.
const RankCase guide_local_sgd("guide_local_sgd", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net;
  auto [model, optimizer, scheduler] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate),
                                                           LrSchedule([](std::int64_t) { return 1.0; }));
  ByHand by_hand(communicator.size());
  {
    LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 3, .enabled = true});
    for (std::int64_t pass = 0; pass < 14; ++pass) {
      const auto window = accelerator.accumulate(model);
      const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
      auto loss = loss_of(model->forward(batch.input), batch.target);
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model, 1e9);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      local_sgd.step();
      if (pass % 2 == 0) continue;
      by_hand.step(pass / 2, 2);
      if ((pass / 2 + 1) % 3 == 0) by_hand.average();
      EXPECT_TRUE(
          close(values_of(*net), values_of(*by_hand.models[static_cast<std::size_t>(communicator.rank())]), 1e-5))
          << "after optimizer step " << pass / 2 + 1;
    }
    EXPECT_EQ(local_sgd.stats().rounds, communicator.size() > 1 ? 2 : 0);
  }
  by_hand.average();
  EXPECT_TRUE(close(values_of(*net), values_of(*by_hand.models[0]), 1e-5));
  // No rank has sent a gradient, and all ranks hold the same bits.
  EXPECT_EQ(accelerator.stats().bytes_sent, 0);
  for (const std::string& bytes : communicator.all_gather_object(bytes_of(*net))) EXPECT_TRUE(bytes == bytes_of(*net));
});
TEST(LocalSGD, IsTheGuidesLoop) {
  guide_local_sgd.on_threads({1, 2, 3, 4});
  guide_local_sgd.on_processes({2, 3});
}

/// Five steps in the plain loop, with or without LocalSGD.
std::vector<at::Tensor> train_plainly(const Communicator& communicator, const LocalSGDOptions& options) {
  Accelerator accelerator({.sync_policy = SyncPolicy::every_pass, .communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate));
  LocalSGD local_sgd(accelerator, model, options);
  for (std::int64_t pass = 0; pass < 5; ++pass) {
    const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
    loss_of(model->forward(batch.input), batch.target).backward();
    optimizer.step();
    optimizer.zero_grad();
    local_sgd.step();
  }
  local_sgd.finish();
  local_sgd.finish();
  local_sgd.step();  // no effect after finish()
  return values_of(*net);
}

const RankCase same_as_synchronous("same_as_synchronous", [](const Communicator& communicator) {
  const auto synchronous = train_plainly(communicator, {.enabled = false});
  EXPECT_TRUE(close(train_plainly(communicator, {.local_sgd_steps = 1}), synchronous, 1e-5));
  EXPECT_TRUE(
      close(train_plainly(communicator, {.local_sgd_steps = 2, .algorithm = {.warmup_steps = 5}}), synchronous, 0));
  if (communicator.size() > 1) {
    EXPECT_FALSE(close(train_plainly(communicator, {.local_sgd_steps = 5}), synchronous, 1e-5));
  }
});
TEST(LocalSGD, EveryStepIsSynchronousTraining) {
  same_as_synchronous.on_threads({1, 2, 3, 4});
}

// Post-local SGD: the warm-up synchronizes gradients, the steps after it do not.
const RankCase post_local("post_local", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net;
  const auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(), rate);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 4, .algorithm = {.warmup_steps = 2}});
  expect_refused<UsageError>([&] { accelerator.prepare(sgd); }, "call LocalSGD's finish() first");
  std::vector<std::int64_t> bytes;
  for (std::int64_t pass = 0; pass < 8; ++pass) {
    const auto window = accelerator.accumulate(model);
    const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
    local_sgd.step();
    if (accelerator.sync_gradients()) bytes.push_back(accelerator.stats().bytes_sent);
  }
  ASSERT_EQ(bytes.size(), 4U);
  EXPECT_GT(bytes[0], 0);
  EXPECT_GT(bytes[1], bytes[0]);
  EXPECT_EQ(bytes[2], bytes[1]);
  EXPECT_EQ(bytes[3], bytes[1]);
});
TEST(LocalSGD, AWarmUpSynchronizesGradients) {
  post_local.on_threads({2, 3});
}

/// A model that is trained in fp16 with a schedule.
struct Fp16Run {
  explicit Fp16Run(const Communicator& communicator)
      : accelerator(
            {.mixed_precision = Precision::fp16, .grad_scaler = {.init_scale = 1024}, .communicator = communicator}),
        prepared(accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate), linear_with_warmup(0, 100))) {}
  void step(double factor) {
    const Batch batch = batch_of(accelerator.rank());
    accelerator.backward(
        accelerator.autocast([&] { return loss_of(net->forward(batch.input), batch.target) * factor; }));
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  }

  Accelerator accelerator;
  Mlp net;
  std::tuple<Mlp&, Optimizer, Scheduler> prepared;
  Optimizer& optimizer = std::get<1>(prepared);
  Scheduler& scheduler = std::get<2>(prepared);
};

// The gradients of one rank overflow, and only this rank skips the step. Afterwards all ranks train together again.
const RankCase local_fp16("local_fp16", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path saved = communicator.broadcast_object(scratch.path().string()) + "/saved";
  Fp16Run run(communicator);
  const bool mine = communicator.rank() == 1;
  {
    LocalSGD local_sgd(run.accelerator, run.net, {.local_sgd_steps = 2});
    for (int i = 0; i < 2; ++i) {
      run.step(mine && i == 0 ? 1e30 : 1.0);
      EXPECT_EQ(run.optimizer.step_was_skipped(), mine && i == 0);
      local_sgd.step();
      if (i == 0) run.accelerator.save_state({.folder = saved});
    }
    EXPECT_EQ(run.accelerator.loss_scale(), mine ? 512 : 1024);
  }
  EXPECT_EQ(run.accelerator.loss_scale(), 1024);
  EXPECT_EQ(run.scheduler.position(), 2);
  run.step(1.0);
  for (const std::string& bytes : communicator.all_gather_object(bytes_of(*run.net))) {
    EXPECT_TRUE(bytes == bytes_of(*run.net));
  }

  Fp16Run resumed(communicator);
  LocalSGD local_sgd(resumed.accelerator, resumed.net, {.local_sgd_steps = 2});
  resumed.accelerator.load_state(saved);
  EXPECT_EQ(resumed.accelerator.loss_scale(), mine ? 512 : 1024);
  EXPECT_EQ(resumed.scheduler.position(), mine ? 0 : 1);
});
TEST(LocalSGD, ASkippedStepIsLocalIsSavedByRankAndIsForgottenAtTheEnd) {
  local_fp16.on_threads({2, 3});
}

struct WithBatchNormImpl : torch::nn::Module {
  WithBatchNormImpl()
      : first(register_module("first", torch::nn::Linear(6, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))),
        second(register_module("second", torch::nn::Linear(4, 3))) {
    fill(*this, 3);
  }
  at::Tensor forward(const at::Tensor& x) { return second(norm(first(x))); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
};
TORCH_MODULE(WithBatchNorm);

const RankCase batch_norm("batch_norm", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  WithBatchNorm net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate));
  LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 4});
  for (int pass = 0; pass < 2; ++pass) {
    const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
    accelerator.backward(loss_of(net->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
    local_sgd.step();
  }
  const at::Tensor mean = net->norm->running_mean.clone();
  communicator.all_reduce(mean).wait();
  local_sgd.finish();
  EXPECT_TRUE(at::allclose(net->norm->running_mean, mean / communicator.size(), 1e-5, 1e-7));
});
TEST(LocalSGD, AveragesBatchNormsStatistics) {
  batch_norm.on_threads({2, 3});
}

TEST(LocalSGD, NothingIsCommunicatedWhileAnExceptionUnwinds) {
  // One rank ends with an exception and does not communicate during unwinding. The other rank throws PeerError instead
  // of waiting for an average.
  std::atomic<int> told{0};
  const auto run = [&](const Communicator& communicator) {
    Accelerator accelerator({.communicator = communicator});
    Mlp net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate));
    LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 2});
    for (std::int64_t pass = 0; pass < 4; ++pass) {
      if (pass == 1 && communicator.rank() == 1) throw std::runtime_error("out of luck");
      const Batch batch = batch_of(pass);
      accelerator.backward(loss_of(model->forward(batch.input), batch.target));
      optimizer.step();
      optimizer.zero_grad();
      if (pass == 0) {
        local_sgd.step();
        continue;
      }
      try {
        local_sgd.step();
        ADD_FAILURE() << "averaged with a rank that has left";
      } catch (const TimeoutError& error) {
        ADD_FAILURE() << "waited until the deadline: " << error.what();
      } catch (const PeerError& error) {
        EXPECT_EQ(error.ranks(), std::vector<int>{1}) << error.what();
        ++told;
      }
      return;
    }
  };
  try {
    run_thread_ranks(2, run, {.timeout = std::chrono::seconds(30)});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "out of luck");
  }
  EXPECT_EQ(told, 1);
}

// Nothing would make the replicas equal again.
TEST(LocalSGD, AnExceptionThatEndsItEndsTraining) {
  Accelerator accelerator({.communicator = Communicator()});
  Mlp net;
  const auto train = [&] { accelerator.backward(loss_of(net->forward(batch_of(0).input), batch_of(0).target)); };
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate));
  try {
    const LocalSGD local_sgd(accelerator, model);
    throw std::runtime_error("out of luck");
  } catch (const std::runtime_error&) {
  }
  const std::string part = "after an exception has ended LocalSGD";
  expect_refused<UsageError>(train, part);
  expect_refused<UsageError>([&] { net->forward(batch_of(0).input).sum().backward(); }, part);
  expect_refused<UsageError>([&] { accelerator.save_state({.folder = "unused"}); }, part);
  accelerator.free_memory();
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate));
  EXPECT_NO_THROW(train());
}

// The checkpoint is of the warm-up, whose windows cannot go on in a local one that has begun.
TEST(LocalSGD, ACheckpointOfTheOtherPhaseThatItRefusesChangesNothing) {
  const TemporaryFolder scratch;
  Accelerator accelerator({.communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate));
  LocalSGD local_sgd(accelerator, model, {.algorithm = {.warmup_steps = 1}});
  const auto train = [&] { accelerator.backward(loss_of(net->forward(batch_of(0).input), batch_of(0).target)); };
  accelerator.save_state({.folder = scratch.path() / "saved"});
  train();
  optimizer.step();
  optimizer.zero_grad();
  local_sgd.step();
  train();
  EXPECT_THROW(accelerator.load_state(scratch.path() / "saved"), UsageError);
  EXPECT_EQ(local_sgd.stats().steps, 1);
  accelerator.discard_accumulation(model);
  accelerator.load_state(scratch.path() / "saved");
  EXPECT_EQ(local_sgd.stats().steps, 0);
}

TEST(LocalSGD, RefusesWhatCannotBe) {
  Accelerator accelerator({.communicator = Communicator()});
  Mlp net, other;
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate));
  EXPECT_THROW(LocalSGD(accelerator, other), UsageError);
  EXPECT_THROW(LocalSGD(accelerator, net, {.local_sgd_steps = 0}), UsageError);
  EXPECT_THROW(LocalSGD(accelerator, net, {.local_sgd_steps = 4, .algorithm = {.local_steps = 5}}), UsageError);
  // Not in the middle of a window.
  const auto window = accelerator.accumulate(net);
  accelerator.backward(loss_of(net->forward(batch_of(0).input), batch_of(0).target));
  EXPECT_THROW(LocalSGD(accelerator, net), UsageError);
}

// Models differ between ranks when they are saved.
const RankCase local_resume("local_resume", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const AcceleratorOptions options{.gradient_accumulation_steps = 2,
                                   .project = {.project_dir = communicator.broadcast_object(scratch.path().string())},
                                   .communicator = communicator};
  const LocalSGDOptions diloco{.local_sgd_steps = 3,
                               .algorithm = {.outer_optimizer = OuterOptimizer::diloco, .wire = WireFormat::int8}};
  constexpr std::int64_t passes = 12;
  const auto train = [&](const std::optional<std::filesystem::path>& resume, std::int64_t first,
                         std::vector<std::filesystem::path>* saves) {
    Accelerator accelerator(options);
    Noisy net(0.0);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
    LocalSGD local_sgd(accelerator, model, diloco);
    if (resume) accelerator.load_state(*resume);
    for (std::int64_t pass = first; pass < passes; ++pass) {
      const auto window = accelerator.accumulate(model);
      const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
      accelerator.backward(loss_of(model->forward(batch.input), batch.target));
      optimizer.step();
      optimizer.zero_grad();
      local_sgd.step();
      if (saves != nullptr) saves->push_back(accelerator.save_state());
    }
    local_sgd.finish();
    return bytes_of(*net);
  };
  std::vector<std::filesystem::path> saves;
  const std::string expected = train(std::nullopt, 0, &saves);
  for (std::int64_t done = 1; done < passes; ++done) {
    EXPECT_TRUE(train(saves[static_cast<std::size_t>(done - 1)], done, nullptr) == expected)
        << "resumed after " << done;
  }
  // A program without LocalSGD cannot load the checkpoint.
  Accelerator accelerator(options);
  Noisy net(0.0);
  accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  EXPECT_THROW(accelerator.load_state(saves[0]), CheckpointError);
  accelerator.wait_for_everyone();
});
TEST(LocalSGD, ResumesWithinARoundToTheSameBits) {
  local_resume.on_processes({1, 2, 3});
}

}  // namespace
}  // namespace tutti::test::local_sgd_test
