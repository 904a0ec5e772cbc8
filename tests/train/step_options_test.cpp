// What makes the steps of ranks differ besides gradients, and the number of steps.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <string>

#include "support/rank_case.h"
#include "train/error_texts.h"
#include "train/training_run.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/optim/schedules.h"
#include "tutti/train/accelerator.h"
#include "tutti/train/local_sgd.h"

namespace tutti::test::step_options_test {
namespace {

at::Tensor loss_on(Mlp& model, std::int64_t index) {
  const Batch batch = batch_of(index);
  return loss_of(model->forward(batch.input), batch.target);
}

void expect_equal_replicas(const Communicator& communicator, const torch::nn::Module& model) {
  for (const std::string& bytes : communicator.all_gather_object(bytes_of(model)))
    EXPECT_TRUE(bytes == bytes_of(model));
}

// Optimizers without a state yet.
const RankCase replicated("step_options_replicated", [](const Communicator& communicator) {
  const double here = 1.0 + communicator.rank();
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->first->parameters(),
                      std::make_unique<torch::optim::AdamWOptions>(
                          torch::optim::AdamWOptions(0.01 * here).betas({0.8 / here, 0.9 / here}).eps(1e-6 * here)));
  groups.emplace_back(net->second->parameters(), std::make_unique<torch::optim::AdamWOptions>(
                                                     torch::optim::AdamWOptions(0.1).weight_decay(0.1 * here)));
  auto [model, optimizer, scheduler] = accelerator.prepare(
      net, torch::optim::AdamW(std::move(groups), torch::optim::AdamWOptions(0.01)), linear_with_warmup(0, 100));
  const auto& first = static_cast<const torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options());
  const auto& second = static_cast<const torch::optim::AdamWOptions&>(optimizer.param_groups()[1].options());
  EXPECT_EQ(first.lr(), 0.01);
  EXPECT_EQ(first.betas(), std::make_tuple(0.8, 0.9));
  EXPECT_EQ(first.eps(), 1e-6);
  EXPECT_EQ(second.weight_decay(), 0.1);
  for (std::int64_t step = 0; step < 3; ++step) {
    accelerator.backward(loss_on(model, step * communicator.size() + communicator.rank()));
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  }
  expect_equal_replicas(communicator, *net);
});
TEST(StepOptions, PrepareMakesThemThoseOfRank0) {
  replicated.on_threads({1, 2, 3});
}

const RankCase other_optimizers("step_options_other_optimizers", [](const Communicator& communicator) {
  const bool other = communicator.rank() == 1;
  const auto prepared = [&](const auto& make) {
    return message_of<MismatchError>([&] {
      Accelerator accelerator({.communicator = communicator});
      Mlp net;
      accelerator.prepare(net, make(net));
    });
  };
  using Made = std::unique_ptr<torch::optim::Optimizer>;
  expect_says(prepared([&](Mlp& net) -> Made {
                if (other) return std::make_unique<torch::optim::AdamW>(net->parameters(), 0.1);
                return std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
              }),
              "rank 0 has an optimizer of type torch::optim::SGD where rank 1 has an optimizer of type "
              "torch::optim::AdamW");
  expect_says(prepared([&](Mlp& net) -> Made {
                std::vector<at::Tensor> all = net->parameters();
                const auto cut = all.begin() + (other ? 1 : 2);
                std::vector<torch::optim::OptimizerParamGroup> groups;
                groups.emplace_back(std::vector<at::Tensor>(all.begin(), cut));
                groups.emplace_back(std::vector<at::Tensor>(cut, all.end()));
                return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(0.1));
              }),
              "rank 0 has parameter group 0 with 2 parameters where rank 1 has parameter group 0 with 1 parameters");
  expect_says(prepared([&](Mlp& net) -> Made {
                return std::make_unique<torch::optim::LBFGS>(net->parameters(),
                                                             torch::optim::LBFGSOptions(1).history_size(other ? 5 : 7));
              }),
              "rank 0 has history_size 7 in parameter group 0 where rank 1 has history_size 5 in parameter group 0");
});
TEST(StepOptions, OtherOptimizersAreAMismatchError) {
  other_optimizers.on_threads({2, 3});
}

const RankCase corrected("step_options_corrected", [](const Communicator& communicator) {
  const bool other = communicator.rank() == 1;
  Accelerator accelerator({.ignored_parameters = {"second"}, .communicator = communicator});
  Mlp net;
  if (other) {
    EXPECT_THROW(accelerator.prepare(net, torch::optim::Adam(net->parameters())), MismatchError);
  } else {
    EXPECT_THROW(accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1)), MismatchError);
  }
  EXPECT_NO_THROW(accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1)));
});
TEST(StepOptions, APrepareThatWasRefusedMayBeCorrected) {
  corrected.on_threads({2, 3});
}

const RankCase other_accelerators("step_options_other_accelerators", [](const Communicator& communicator) {
  const bool other = communicator.rank() == 1;
  const auto prepared = [&](AcceleratorOptions options) {
    options.communicator = communicator;
    return message_of<MismatchError>([&] {
      Accelerator accelerator(options);
      Mlp net;
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    });
  };
  expect_says(prepared({.gradient_accumulation_steps = other ? 3 : 2}),
              "rank 0 has gradient_accumulation_steps 2 where rank 1 has gradient_accumulation_steps 3");
  expect_says(prepared({.mixed_precision = Precision::fp16, .grad_scaler = {.growth_interval = other ? 10 : 20}}),
              "rank 0 has grad_scaler.growth_interval 20");
  expect_says(prepared({.buffer_sync = other ? BufferSync::none : BufferSync::mean}), "buffer_sync");
  expect_says(prepared({.fused_optimizers = other}), "fused_optimizers");
  expect_says(prepared({.ignored_parameters = {other ? "first" : "second"}}), "ignored_parameters 'second'");
});
TEST(StepOptions, OtherOptionsOfTheAcceleratorAreAMismatchError) {
  other_accelerators.on_threads({2, 3});
}

struct Run {
  explicit Run(const Communicator& ranks) : communicator(ranks), accelerator({.communicator = ranks}) {}
  void backward(std::int64_t step = 0) {
    accelerator.backward(loss_on(net, step * communicator.size() + communicator.rank()));
  }
  void step(Optimizer& optimizer) {
    optimizer.step();
    optimizer.zero_grad();
  }
  /// The error of the next step.
  std::string mismatch(Optimizer& optimizer) {
    return message_of<MismatchError>([&] {
      backward();
      step(optimizer);
    });
  }
  Communicator communicator;
  Accelerator accelerator;
  Mlp net;
};

// Each is found before the next step.
const RankCase changed_later("step_options_changed_later", [](const Communicator& communicator) {
  const bool other = communicator.rank() == 1;
  {
    Run run(communicator);
    auto [model, optimizer] = run.accelerator.prepare(run.net, torch::optim::Adam(run.net->parameters(), 0.25));
    run.backward();
    run.step(optimizer);
    optimizer.set_learning_rate(other ? 0.5 : 0.25);
    expect_says(run.mismatch(optimizer),
                "rank 0 has lr 0.25 in parameter group 0 where rank 1 has lr 0.5 in parameter group 0");
    EXPECT_THROW(optimizer.step(), UsageError);
    optimizer.zero_grad();
    optimizer.set_learning_rate(0.25);
    run.backward();
    run.step(optimizer);
    expect_equal_replicas(communicator, *run.net);
    auto& adam = static_cast<torch::optim::AdamOptions&>(optimizer.param_groups()[0].options());
    adam.betas({0.9, other ? 0.5 : 0.75});
    expect_says(run.mismatch(optimizer), "beta2 0.75");
  }
  {
    Run run(communicator);
    auto [model, optimizer, scheduler] = run.accelerator.prepare(run.net, torch::optim::SGD(run.net->parameters(), 1),
                                                                 linear_with_warmup(0, other ? 8 : 4));
    run.backward();
    run.step(optimizer);
    scheduler.step();
    expect_says(run.mismatch(optimizer), "lr 0.75");
  }
  {
    Run run(communicator);
    torch::optim::SGD sgd(run.net->first->parameters(), 0.1);
    auto [model, optimizer] = run.accelerator.prepare(run.net, sgd);
    if (other) sgd.add_param_group(torch::optim::OptimizerParamGroup(run.net->second->parameters()));
    expect_says(run.mismatch(optimizer), "rank 0 has nothing where rank 1 has number of");
  }
});
TEST(StepOptions, ChangesOnOneRankAreNamed) {
  changed_later.on_threads({2, 3});
}

const RankCase clipping("step_options_clipping", [](const Communicator& communicator) {
  const bool other = communicator.rank() == 1;
  for (const bool by_value : {false, true}) {
    Run run(communicator);
    // The rate is 0, so that the parameters stay equal.
    auto [model, optimizer] = run.accelerator.prepare(run.net, torch::optim::SGD(run.net->parameters(), 0.0));
    // Limits that limit nothing may differ.
    run.backward();
    run.accelerator.clip_grad_norm_(run.net, other ? 1e9 : 1e8);
    run.step(optimizer);
    run.backward();
    if (by_value) {
      run.accelerator.clip_grad_value_(run.net, other ? 0.25 : 0.125);
    } else {
      run.accelerator.clip_grad_norm_(run.net, other ? 2e-3 : 1e-3);
    }
    run.step(optimizer);
    expect_says(run.mismatch(optimizer), by_value ? "clip_value of clip_grad_value_() 0.125 where"
                                                  : "rank 0 has max_norm of clip_grad_norm_() 0.001 where rank 1 has "
                                                    "max_norm of clip_grad_norm_() 0.002");
  }
});
TEST(StepOptions, LimitsOfClippingAreNamed) {
  clipping.on_threads({2, 3});
}

// Ranks may differ in local steps; finish() makes rates, schedules and the number of steps equal again.
const RankCase local_steps("step_options_local_steps", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  Accelerator accelerator({.project = {.project_dir = communicator.broadcast_object(scratch.path().string())},
                           .communicator = communicator});
  Mlp net;
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), linear_with_warmup(0, 100));
  const auto step = [&, &model = model, &optimizer = optimizer, &scheduler = scheduler](std::int64_t index,
                                                                                        double limit = 1e9) {
    accelerator.backward(loss_on(model, index));
    accelerator.clip_grad_norm_(model, limit);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  };
  step(communicator.rank());
  {
    LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 10});
    for (int i = 0; i < 2; ++i) {
      optimizer.set_learning_rate(0.1 * (1 + communicator.rank()));
      step(i * communicator.size() + communicator.rank(), 1e-3 * (1 + communicator.rank()));
      local_sgd.step();
    }
    EXPECT_EQ(accelerator.stats().syncs, 1);
    EXPECT_EQ(accelerator.stats().syncs_skipped, 2);
    optimizer.set_learning_rate(0.1 * (1 + communicator.rank()));
  }
  EXPECT_EQ(scheduler.position(), 3);
  for (int i = 0; i < 3; ++i) ASSERT_NO_THROW(step(i * communicator.size() + communicator.rank()));
  EXPECT_EQ(accelerator.stats().syncs, 4);
  expect_equal_replicas(communicator, *net);
  EXPECT_EQ(optimizer.reducer()->steps(), 6);
  const std::string saved = accelerator.save_state().filename().string();
  expect_says(saved, "step_6");
});
TEST(StepOptions, MayDifferInLocalSteps) {
  local_steps.on_threads({1, 2, 3});
}

// A rank whose backward pass reaches no parameter synchronizes in step(). The other ranks have done so in backward.
const RankCase in_between("step_options_in_between", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp net, average(2);
  for (at::Tensor& parameter : average->parameters()) parameter.requires_grad_(false);
  auto [model, other, optimizer] = accelerator.prepare(net, average, torch::optim::SGD(net->parameters(), 0.1));
  for (int step = 0; step < 3; ++step) {
    const auto window = accelerator.accumulate(model);
    at::Tensor loss = at::ones({}).requires_grad_() * 1;
    if (communicator.rank() != step) loss = loss_on(model, step * communicator.size() + communicator.rank());
    accelerator.backward(loss);
    optimizer.set_learning_rate(0.1 / (step + 1));
    average->first->bias.data().add_(1);
    ASSERT_NO_THROW(optimizer.step());
    optimizer.zero_grad();
  }
  expect_equal_replicas(communicator, *net);
});
TEST(StepOptions, MayChangeBetweenBackwardAndStep) {
  in_between.on_threads({1, 2, 3});
}

const RankCase step_count("step_options_step_count", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  Accelerator accelerator({.project = {.project_dir = communicator.broadcast_object(scratch.path().string())},
                           .communicator = communicator});
  Mlp net;
  for (at::Tensor& parameter : net->first->parameters()) parameter.requires_grad_(false);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  const auto step = [&, &model = model, &optimizer = optimizer] {
    accelerator.backward(loss_on(model, communicator.rank()));
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int i = 0; i < 3; ++i) step();
  expect_says(accelerator.save_state().filename().string(), "checkpoint_0_step_3");
  for (at::Tensor& parameter : net->first->parameters()) parameter.requires_grad_(true);
  accelerator.prepare(net, optimizer);
  step();
  expect_says(accelerator.save_state().filename().string(), "checkpoint_1_step_4");
  EXPECT_EQ(accelerator.load_latest_state()->step, 4);
  step();
  EXPECT_EQ(optimizer.reducer()->steps(), 5);
  communicator.barrier().wait();
});
TEST(StepCount, GoesOnWhenAModelIsPreparedAgain) {
  step_count.on_threads({1, 2});
}

}  // namespace
}  // namespace tutti::test::step_options_test
