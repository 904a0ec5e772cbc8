// LocalSGD in loops that leave gradients without a step, leave out steps or follow a schedule, on 1 to 3 ranks.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <optional>

#include "support/rank_case.h"
#include "train/training_run.h"
#include "tutti/core/error.h"
#include "tutti/optim/schedules.h"
#include "tutti/train/local_sgd.h"

namespace tutti::test::local_sgd_loops_test {
namespace {

constexpr double rate = 0.1;

bool same_on_all_ranks(const Communicator& communicator, const torch::nn::Module& module) {
  for (const std::string& bytes : communicator.all_gather_object(bytes_of(module))) {
    if (bytes != bytes_of(module)) return false;
  }
  return true;
}

/// A usual GAN loop: the generator's pass leaves gradients in the critic, which no step uses. `clears`: the program
/// clears them in each iteration.
std::string train_gan(const Communicator& communicator, bool in_scopes, std::int64_t warmup, bool clears) {
  Accelerator accelerator({.communicator = communicator});
  torch::nn::Linear generator(2, 6), critic(6, 1);
  fill(*generator, 1);
  fill(*critic, 2);
  auto [g, c, step_g, step_c] = accelerator.prepare(generator, critic, torch::optim::SGD(generator->parameters(), rate),
                                                    torch::optim::SGD(critic->parameters(), rate));
  const LocalSGDOptions options{.local_sgd_steps = 2, .algorithm = {.warmup_steps = warmup}};
  LocalSGD local_g(accelerator, *generator, options), local_c(accelerator, *critic, options);
  for (std::int64_t pass = 0; pass < 5; ++pass) {
    std::optional<AccumulateScope> window;
    if (in_scopes) window.emplace(accelerator.accumulate(*generator, *critic));
    const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
    step_c.zero_grad();
    const at::Tensor fake = generator->forward(batch.input.slice(1, 0, 2));
    accelerator.backward((critic->forward(fake.detach()) - critic->forward(batch.input)).mean());
    step_c.step();
    step_g.zero_grad();
    accelerator.backward(-critic->forward(fake).mean());
    step_g.step();
    if (clears) step_c.zero_grad();
    local_g.step();
    local_c.step();
  }
  local_g.finish();
  local_c.finish();
  EXPECT_FALSE(critic->weight.grad().defined());
  EXPECT_TRUE(same_on_all_ranks(communicator, *generator));
  EXPECT_TRUE(same_on_all_ranks(communicator, *critic));
  return bytes_of(*generator) + bytes_of(*critic);
}

const RankCase gan("local_gan", [](const Communicator& communicator) {
  for (const std::int64_t warmup : {0, 3}) {
    for (const bool in_scopes : {false, true}) {
      EXPECT_TRUE(train_gan(communicator, in_scopes, warmup, false) ==
                  train_gan(communicator, in_scopes, warmup, true));
    }
  }
});
TEST(LocalSGD, TrainsAGanWhoseGeneratorLeavesGradientsInTheCritic) {
  gan.on_threads({1, 2, 3});
}

// The optimizer has a part of the trainable parameters. LocalSGD may also begin after synchronous steps.
const RankCase part_of_model("local_part_of_model", [](const Communicator& communicator) {
  for (const std::int64_t warmup : {0, 2}) {
    Accelerator accelerator({.communicator = communicator});
    torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::Linear(4, 3));
    fill(*net, 1);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net[1]->parameters(), rate));
    const auto train = [&](LocalSGD* local_sgd) {
      for (std::int64_t pass = 0; pass < 5; ++pass) {
        const auto window = accelerator.accumulate(model);
        const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
        accelerator.backward(loss_of(net->forward(batch.input), batch.target));
        optimizer.step();
        optimizer.zero_grad();
        if (local_sgd != nullptr) local_sgd->step();
      }
    };
    train(nullptr);
    LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 2, .algorithm = {.warmup_steps = warmup}});
    train(&local_sgd);
    local_sgd.finish();
    EXPECT_EQ(local_sgd.stats().steps, 5);
    EXPECT_TRUE(same_on_all_ranks(communicator, *net));
  }
});
TEST(LocalSGD, TrainsAPartOfAModel) {
  part_of_model.on_threads({1, 2, 3});
}

// finish() discards the gradients of an unfinished window: the window that follows begins with its first micro-batch.
const RankCase unfinished_window("local_unfinished_window", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate));
  LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 2});
  const auto pass = [&](std::int64_t number) {
    const Batch batch = batch_of(number * communicator.size() + communicator.rank());
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
  };
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto window = accelerator.accumulate(model);
    if (i == 3) {
      EXPECT_THROW(local_sgd.finish(), UsageError);
    }
    pass(i);
    optimizer.step();
    optimizer.zero_grad();
    if (i != 3) local_sgd.step();
  }
  EXPECT_EQ(local_sgd.stats().rounds, 0);  // finish() has thrown before an average
  local_sgd.step();
  for (std::int64_t i = 4; i < 7; ++i) {
    const auto window = accelerator.accumulate(model);
    pass(i);
    optimizer.step();
    optimizer.zero_grad();
    local_sgd.step();
  }
  local_sgd.finish();
  EXPECT_TRUE(same_on_all_ranks(communicator, *net));
  for (std::int64_t i = 7; i < 9; ++i) {
    const auto window = accelerator.accumulate(model);
    EXPECT_EQ(accelerator.sync_gradients(), i == 8);
    pass(i);
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_TRUE(same_on_all_ranks(communicator, *net));
});
TEST(LocalSGD, FinishDiscardsAnUnfinishedWindow) {
  unfinished_window.on_threads({1, 2, 3});
}

// The last rank leaves out a step, and every rank takes two steps in one window. Each window counts once.
const RankCase left_out_step("local_left_out_step", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate));
  LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 2});
  const bool leaves_out = communicator.rank() == communicator.size() - 1;
  for (std::int64_t pass = 0; pass < 14; ++pass) {
    const std::int64_t step = pass / 2;
    const auto window = accelerator.accumulate(model);
    const int steps = step == 4 && accelerator.sync_gradients() ? 2 : 1;
    for (int i = 0; i < steps; ++i) {
      const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
      if (!leaves_out || step != 6) accelerator.backward(loss_of(model->forward(batch.input), batch.target));
      if (!leaves_out || (step != 1 && step != 6)) optimizer.step();
      optimizer.zero_grad();
    }
    local_sgd.step();
    EXPECT_EQ(local_sgd.stats().steps, (pass + 1) / 2) << "after micro-batch " << pass;
    if (pass % 4 == 3) {
      EXPECT_TRUE(same_on_all_ranks(communicator, *net)) << "after micro-batch " << pass;
    }
  }
  local_sgd.finish();
  EXPECT_TRUE(same_on_all_ranks(communicator, *net));
});
TEST(LocalSGD, CountsAWindowWhoseStepOneRankLeavesOut) {
  left_out_step.on_threads({1, 2, 3});
}

// The last rank runs no backward pass in the last scope of a window. The earlier micro-batch is used only by a step.
const RankCase left_out_micro_batch("local_left_out_micro_batch", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate));
  LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 2});
  const bool leaves_out = communicator.rank() == communicator.size() - 1;
  for (std::int64_t pass = 0; pass < 12; ++pass) {
    const std::int64_t step = pass / 2;
    const auto window = accelerator.accumulate(model);
    const bool left_out = leaves_out && step % 2 == 1 && accelerator.sync_gradients();
    if (!left_out) {
      const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
      accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    }
    const at::Tensor before = net->parameters().front().detach().clone();
    if (!left_out || step == 1) optimizer.step();
    if (left_out) {
      EXPECT_EQ(before.equal(net->parameters().front()), step != 1);
    }
    optimizer.zero_grad();
    local_sgd.step();
    EXPECT_EQ(local_sgd.stats().steps, (pass + 1) / 2) << "after micro-batch " << pass;
    if (left_out) {
      EXPECT_FALSE(net->parameters().front().grad().defined());
    }
  }
  local_sgd.finish();
  EXPECT_TRUE(same_on_all_ranks(communicator, *net));
});
TEST(LocalSGD, CountsAWindowWhoseLastMicroBatchOneRankLeavesOut) {
  left_out_micro_batch.on_threads({1, 2, 3});
}

TEST(LocalSGD, WarnsOfAStepAfterFinish) {
  Accelerator accelerator({.communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate));
  LocalSGD local_sgd(accelerator, model);
  local_sgd.finish();
  for (const bool is_first : {true, false}) {
    testing::internal::CaptureStderr();
    local_sgd.step();
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(log.find("step() after finish() has no effect") != std::string::npos, is_first) << log;
  }
}

// A program may accumulate over windows: without a step and without zero_grad() no window counts.
TEST(LocalSGD, DoesNotCountAWindowThatWaitsForItsStep) {
  Accelerator accelerator({.communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate));
  LocalSGD local_sgd(accelerator, model);
  for (std::int64_t pass = 0; pass < 6; ++pass) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(loss_of(model->forward(batch_of(pass).input), batch_of(pass).target));
    if (pass % 3 == 2) {
      optimizer.step();
      optimizer.zero_grad();
    }
    local_sgd.step();
    EXPECT_EQ(local_sgd.stats().steps, (pass + 1) / 3);
  }
}

// The schedule is at 0 after the last step, and under fp16 one rank skips a step, so schedules differ.
const RankCase slowmo_schedule("local_slowmo_schedule", [](const Communicator& communicator) {
  Accelerator accelerator(
      {.mixed_precision = Precision::fp16, .grad_scaler = {.init_scale = 1024}, .communicator = communicator});
  Mlp net;
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate), linear_with_warmup(0, 6));
  LocalSGD local_sgd(accelerator, model,
                     {.local_sgd_steps = 2, .algorithm = {.outer_optimizer = OuterOptimizer::slowmo}});
  for (int i = 0; i < 6; ++i) {
    const Batch batch = batch_of(communicator.rank());
    const double factor = communicator.rank() == 1 && i == 2 ? 1e30 : 1.0;
    accelerator.backward(
        accelerator.autocast([&] { return loss_of(net->forward(batch.input), batch.target) * factor; }));
    optimizer.step();
    EXPECT_EQ(optimizer.step_was_skipped(), factor != 1.0);
    scheduler.step();
    optimizer.zero_grad();
    local_sgd.step();
  }
  if (communicator.rank() == 0) {
    EXPECT_EQ(optimizer.learning_rate(), 0);
  }
  local_sgd.finish();
  EXPECT_TRUE(same_on_all_ranks(communicator, *net));
});
TEST(LocalSGD, SlowMoFollowsASchedule) {
  slowmo_schedule.on_threads({1, 2, 3});
}

TEST(LocalSGD, SaysThatSlowMoNeedsOneOptimizer) {
  Accelerator accelerator({.communicator = Communicator()});
  torch::nn::Linear first(6, 4), second(4, 3);
  torch::nn::Sequential net(first, second);
  accelerator.prepare(net, torch::optim::SGD(first->parameters(), rate), torch::optim::SGD(second->parameters(), rate));
  for (const LocalSgdAlgorithmOptions& options :
       {LocalSgdAlgorithmOptions{.outer_optimizer = OuterOptimizer::slowmo},
        LocalSgdAlgorithmOptions{.state_sync = {.momentum = MomentumRule::average}}}) {
    try {
      const LocalSGD local_sgd(accelerator, net, {.algorithm = options});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("needs one prepared optimizer"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tutti::test::local_sgd_loops_test
