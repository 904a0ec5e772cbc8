// Mistakes of new users: each works or is an error that says what to do instead.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <string>

#include "support/rank_case.h"
#include "train/training_run.h"
#include "tutti/core/error.h"
#include "tutti/train/local_sgd.h"

namespace tutti::test::mistakes_test {
namespace {

std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "it was not refused";
}

// ---- prepare() forgotten

const RankCase forgotten_prepare("forgotten_prepare", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  const Batch batch = batch_of(communicator.rank());
  const auto backward = [&] { accelerator.backward(loss_of(net->forward(batch.input), batch.target)); };
  if (communicator.size() == 1) {
    EXPECT_NO_THROW(backward());  // on one rank it is correct
  } else {
    EXPECT_NE(refusal_of(backward).find("nothing prepared"), std::string::npos) << refusal_of(backward);
  }
});
TEST(Mistakes, BackwardWithNothingPreparedIsRefusedOnSeveralRanks) {
  forgotten_prepare.on_threads({1, 2});
}

const RankCase forgotten_in_a_plain_loop("forgotten_in_a_plain_loop", [](const Communicator& communicator) {
  Mlp net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  int batches = 0;
  const auto train = [&](Accelerator& accelerator, bool trains) {
    batches = 0;
    auto loader = accelerator.data_loader(Samples{12}, {.batch_size = 1});
    for (auto& batch : loader) {
      ++batches;
      const at::Tensor loss = loss_of(net->forward(batch.input), batch.target);
      if (!trains) continue;
      loss.backward();
      optimizer.step();
    }
  };
  const int all = 12 / communicator.size();
  Accelerator accelerator({.communicator = communicator});
  train(accelerator, false);  // evaluation needs no prepare()
  EXPECT_EQ(batches, all);
  if (communicator.size() == 1) {
    train(accelerator, true);
    EXPECT_EQ(batches, all);
    return;
  }
  const std::string why = refusal_of([&] { train(accelerator, true); });
  EXPECT_NE(why.find("nothing prepared"), std::string::npos) << why;
  EXPECT_EQ(batches, 1);
  // A program that uses the communicator may synchronize by hand.
  Accelerator by_hand({.communicator = communicator});
  EXPECT_EQ(by_hand.communicator().size(), communicator.size());
  train(by_hand, true);
  EXPECT_EQ(batches, all);
  accelerator.prepare(net, optimizer);
  train(accelerator, true);
  EXPECT_EQ(batches, all);
});
TEST(Mistakes, APlainLoopWithNothingPreparedIsRefusedOnSeveralRanks) {
  forgotten_in_a_plain_loop.on_processes({1, 2});
}

TEST(Mistakes, SavingNothingIsRefused) {
  const TemporaryFolder scratch;
  Accelerator accelerator({.project = {.project_dir = scratch.path()}, .communicator = Communicator()});
  auto loader = accelerator.data_loader(Samples{4}, {.batch_size = 2});
  const std::string why = refusal_of([&] { accelerator.save_state(); });
  EXPECT_NE(why.find("nothing prepared"), std::string::npos) << why;
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

// ---- one layer under two names

struct TwiceImpl : torch::nn::Module {
  TwiceImpl() : shared(6, 6), last(register_module("last", torch::nn::Linear(6, 3))) {
    register_module("a", shared);
    register_module("b", shared);
    fill(*this, 3);
  }
  at::Tensor forward(const at::Tensor& x) { return last(at::tanh(shared(at::tanh(shared(x))))); }
  torch::nn::Linear shared;
  torch::nn::Linear last;
};
TORCH_MODULE(Twice);

using Make = std::unique_ptr<torch::optim::Optimizer> (*)(const std::vector<at::Tensor>&);
constexpr std::array<Make, 4> optimizers{
    [](const std::vector<at::Tensor>& parameters) -> std::unique_ptr<torch::optim::Optimizer> {
      return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
    },
    [](const std::vector<at::Tensor>& parameters) -> std::unique_ptr<torch::optim::Optimizer> {
      return std::make_unique<torch::optim::AdamW>(parameters, 0.01);
    },
    [](const std::vector<at::Tensor>& parameters) -> std::unique_ptr<torch::optim::Optimizer> {
      return std::make_unique<torch::optim::Adagrad>(parameters, 0.05);
    },
    [](const std::vector<at::Tensor>& parameters) -> std::unique_ptr<torch::optim::Optimizer> {
      return std::make_unique<torch::optim::RMSprop>(parameters, 0.01);
    },
};

// LibTorch's optimizer steps a parameter twice that is listed twice.
const RankCase registered_twice("registered_twice", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
  for (const Make& make : optimizers) {
    Twice plain;
    ASSERT_EQ(plain->parameters().size(), 6U);
    const auto plain_optimizer = make(plain->parameters());
    const auto step_plainly = [&](std::int64_t step) {
      plain_optimizer->zero_grad();
      for (int rank = 0; rank < communicator.size(); ++rank) {
        const Batch batch = batch_of(step * communicator.size() + rank);
        (loss_of(plain->forward(batch.input), batch.target) / communicator.size()).backward();
      }
      plain_optimizer->step();
    };
    const auto step_on_ranks = [&](Accelerator& accelerator, Twice& net, Optimizer& optimizer, std::int64_t step) {
      const Batch batch = batch_of(step * communicator.size() + communicator.rank());
      accelerator.backward(loss_of(net->forward(batch.input), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    };
    std::filesystem::path saved;
    {
      Accelerator accelerator({.project = {.project_dir = folder}, .communicator = communicator});
      Twice net;
      auto [model, optimizer] = accelerator.prepare(net, make(net->parameters()));
      for (std::int64_t step = 0; step < 3; ++step) step_on_ranks(accelerator, net, optimizer, step);
      saved = accelerator.save_state();
    }
    for (std::int64_t step = 0; step < 5; ++step) step_plainly(step);

    Accelerator accelerator({.communicator = communicator});
    Twice net;
    auto [model, optimizer] = accelerator.prepare(net, make(net->parameters()));
    accelerator.load_state(saved);
    for (std::int64_t step = 3; step < 5; ++step) step_on_ranks(accelerator, net, optimizer, step);
    EXPECT_TRUE(close(net->parameters(), plain->parameters(), 1e-5)) << typeid(optimizer.inner()).name();
    // prepare() in the middle of training broadcasts rank 0's state.
    accelerator.prepare(net, optimizer);
    step_on_ranks(accelerator, net, optimizer, 5);
    step_plainly(5);
    EXPECT_TRUE(close(net->parameters(), plain->parameters(), 1e-5)) << typeid(optimizer.inner()).name();
  }
  communicator.barrier().wait();
});
TEST(Mistakes, ALayerRegisteredTwiceTrainsAndIsSavedOnEveryRank) {
  registered_twice.on_threads({1, 2, 3});
}

// ---- models with equal parameter names under one optimizer

const RankCase alike_names("alike_names", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
  Accelerator accelerator({.project = {.project_dir = folder}, .communicator = communicator});
  Mlp first(1), second(2);
  std::vector<at::Tensor> parameters = first->parameters();
  for (const at::Tensor& parameter : second->parameters()) parameters.push_back(parameter);
  auto [one, other, optimizer] = accelerator.prepare(first, second, torch::optim::AdamW(parameters, 0.01));
  const auto step = [&, &optimizer = optimizer](std::int64_t number) {
    const Batch batch = batch_of(number * communicator.size() + communicator.rank());
    accelerator.backward(loss_of(first->forward(batch.input) + second->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
  };
  step(0);
  const auto saved = accelerator.save_state();
  step(1);
  const std::string expected = bytes_of(*first) + bytes_of(*second);
  accelerator.load_state(saved);
  step(1);
  EXPECT_TRUE(bytes_of(*first) + bytes_of(*second) == expected);
  communicator.barrier().wait();
});
TEST(Mistakes, OneOptimizerOverModelsWithEqualNamesIsSaved) {
  alike_names.on_threads({1, 2});
}

// ---- from local steps back to synchronous ones

const RankCase after_local_steps("after_local_steps", [](const Communicator& communicator) {
  for (const Make& make : optimizers) {
    for (const MomentumRule rule : {MomentumRule::local, MomentumRule::average}) {
      Accelerator accelerator({.communicator = communicator});
      Mlp net;
      auto [model, optimizer] = accelerator.prepare(net, make(net->parameters()));
      const auto step = [&, &optimizer = optimizer](std::int64_t number) {
        const Batch batch = batch_of(number * communicator.size() + communicator.rank());
        accelerator.backward(loss_of(net->forward(batch.input), batch.target));
        optimizer.step();
        optimizer.zero_grad();
      };
      {
        LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 2, .algorithm = {.state_sync = {.momentum = rule}}});
        for (int number = 0; number < 3; ++number) {
          step(number);
          local_sgd.step();
        }
      }
      for (int number = 3; number < 7; ++number) {
        ASSERT_NO_THROW(step(number)) << typeid(optimizer.inner()).name();
        for (const std::string& bytes : communicator.all_gather_object(bytes_of(*net))) {
          EXPECT_TRUE(bytes == bytes_of(*net)) << typeid(optimizer.inner()).name() << " drifts at step " << number;
        }
      }
    }
  }
});
TEST(Mistakes, SynchronousStepsMayFollowLocalOnesWithAnyOptimizer) {
  after_local_steps.on_threads({2, 3});
}

// ---- further mistakes

TEST(Mistakes, AJoinScopeMoves) {
  Accelerator accelerator({.communicator = Communicator()});
  auto loader = accelerator.data_loader(Samples{4}, {.batch_size = 2, .even_batches = false});
  const auto stack = std::make_shared<LoaderStack>();
  const auto tail = [&stack] { return stack->tail(false); };
  std::vector<JoinScope> scopes;
  scopes.push_back(JoinScope(stack));
  EXPECT_EQ(tail(), EpochTail::join);
  scopes.push_back(JoinScope(stack, true));
  EXPECT_EQ(tail(), EpochTail::repeat);
  scopes.erase(scopes.begin());  // the scope that was opened last stays open
  EXPECT_EQ(tail(), EpochTail::repeat);
  scopes.front() = JoinScope(stack);
  EXPECT_EQ(tail(), EpochTail::join);
  JoinScope moved = std::move(scopes.front());
  scopes.clear();
  EXPECT_EQ(tail(), EpochTail::join);
  { const JoinScope ends = std::move(moved); }
  EXPECT_EQ(tail(), EpochTail::shorten);
}

TEST(Mistakes, ParameterGroupsCanBeReached) {
  Accelerator accelerator({.communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  optimizer.param_groups().front().options().set_lr(0.25);
  EXPECT_EQ(optimizer.learning_rate(), 0.25);
  EXPECT_EQ(std::as_const(optimizer).param_groups().size(), 1U);
}

const RankCase seeded_shuffle("seeded_shuffle", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  const auto order = [&](const DataLoaderOptions& options) {
    auto loader = accelerator.data_loader(Samples{12}, options);
    std::string bytes;
    for (auto& batch : loader) {
      bytes.append(static_cast<const char*>(batch.input.const_data_ptr()), batch.input.nbytes());
    }
    return bytes;
  };
  const std::string unseeded = order({.batch_size = 2, .shuffle = true});
  EXPECT_TRUE(order({.batch_size = 2, .shuffle = true, .seed = 0}) == unseeded);
  accelerator.set_seed(7, {.device_specific = true});
  const std::string seeded = order({.batch_size = 2, .shuffle = true});
  EXPECT_FALSE(seeded == unseeded);
  EXPECT_TRUE(order({.batch_size = 2, .shuffle = true, .seed = 7}) == seeded);
  EXPECT_TRUE(order({.batch_size = 2, .shuffle = true, .seed = 0}) == unseeded);
});
TEST(Mistakes, SetSeedReachesLoadersThatShuffleWithoutASeed) {
  seeded_shuffle.on_threads({1, 2});
}

const RankCase debug_lines("debug_lines", [](const Communicator& communicator) {
  ::setenv("TUTTI_LOG_LEVEL", "debug", 1);
  testing::internal::CaptureStderr();
  {
    Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
    Mlp net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    accelerator.backward(loss_of(net->forward(batch_of(0).input), batch_of(0).target));
    optimizer.step();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  if (communicator.rank() != 0) return;
  for (const std::string& part :
       {"2 ranks on 1 nodes, backend " + communicator.backend_name(), std::string("automatic"),
        std::string("4 parameters"), std::string("synchronized gradients 1 times")}) {
    EXPECT_NE(said.find(part), std::string::npos) << part << " is not in: " << said;
  }
});
TEST(Mistakes, TheDebugLevelLogsTheChoices) {
  debug_lines.on_processes({2});
}

// ---- backward() outside of the scope

TEST(Mistakes, ABackwardPassBeforeOrAfterItsScopeIsRefused) {
  for (const bool before : {true, false}) {
    Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = Communicator()});
    Mlp net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const Batch batch = batch_of(0);
    at::Tensor loss = loss_of(net->forward(batch.input), batch.target);
    if (before) accelerator.backward(loss);
    {
      const auto window = accelerator.accumulate(model);
      if (before) {
        const std::string refusal = refusal_of([&, &step = optimizer] { step.step(); });
        EXPECT_NE(refusal.find("backward() was outside of it"), std::string::npos) << refusal;
      }
      loss = loss_of(net->forward(batch.input), batch.target);
    }
    if (before) continue;
    accelerator.backward(loss);
    const std::string refusal = refusal_of([&, &step = optimizer] { step.step(); });
    EXPECT_NE(refusal.find("whose last scope is still to come"), std::string::npos) << refusal;
  }
}

}  // namespace
}  // namespace tutti::test::mistakes_test
