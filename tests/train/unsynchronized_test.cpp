// Parameters that an optimizer steps and no reducer synchronizes, prepared parameters that no optimizer steps, and
// parameters of which every rank trains its own.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "support/rank_case.h"
#include "train/error_texts.h"
#include "train/training_run.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/train/accelerator.h"
#include "tutti/train/local_sgd.h"

namespace tutti::test::unsynchronized_test {
namespace {

void freeze(Mlp& model, bool frozen) {
  for (at::Tensor& parameter : model->first->parameters()) parameter.requires_grad_(!frozen);
}

at::Tensor loss_on(Mlp& model, std::int64_t index) {
  const Batch batch = batch_of(index);
  return loss_of(model->forward(batch.input), batch.target);
}

std::vector<at::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : module.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

void change(const at::Tensor& parameter, double by) {
  const at::NoGradGuard no_grad;
  at::Tensor(parameter).add_(by);
}

// The body is frozen, the head is trained; then the body is unfrozen and added to the prepared optimizer.
const RankCase added_group("unsynchronized_added_group", [](const Communicator& communicator) {
  const std::int64_t ranks = communicator.size();
  Mlp alone;
  torch::optim::SGD alone_sgd(alone->second->parameters(), 0.1);
  const auto step_alone = [&](std::int64_t step) {
    alone_sgd.zero_grad();
    for (std::int64_t rank = 0; rank < ranks; ++rank) (loss_on(alone, step * ranks + rank) / ranks).backward();
    alone_sgd.step();
  };
  freeze(alone, true);
  for (std::int64_t step = 0; step < 2; ++step) step_alone(step);
  freeze(alone, false);
  alone_sgd.add_param_group({alone->first->parameters(), std::make_unique<torch::optim::SGDOptions>(0.05)});
  for (std::int64_t step = 2; step < 4; ++step) step_alone(step);

  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  freeze(net, true);
  torch::optim::SGD sgd(net->second->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto step_on = [&, &model = model, &optimizer = optimizer](std::int64_t step) {
    accelerator.backward(loss_on(model, step * ranks + communicator.rank()));
    optimizer.step();
    optimizer.zero_grad();
  };
  for (std::int64_t step = 0; step < 2; ++step) step_on(step);
  freeze(net, false);
  sgd.add_param_group({net->first->parameters(), std::make_unique<torch::optim::SGDOptions>(0.05)});
  const auto before = values_of(*net);
  const std::string why = message_of<UsageError>([&] { step_on(2); });
  expect_says(why, "'first.weight', number 0 of parameter group 1");
  expect_says(why, "prepare the model and this optimizer again");
  EXPECT_TRUE(close(values_of(*net), before, 0));
  optimizer.zero_grad();
  accelerator.prepare(net, optimizer);
  for (std::int64_t step = 2; step < 4; ++step) step_on(step);
  EXPECT_TRUE(close(net->parameters(), alone->parameters(), 1e-5));
  EXPECT_EQ(optimizer.reducer()->steps(), 4);
});
TEST(Unsynchronized, AGroupThatIsAddedAfterPrepareIsNamed) {
  added_group.on_threads({1, 2, 3});
}

// A layer in front of the prepared model, in the first group.
const RankCase layer_in_front("unsynchronized_layer_in_front", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  torch::nn::Linear front(6, 6);
  fill(*front, 5);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (const at::Tensor& parameter : front->parameters()) sgd.param_groups()[0].params().push_back(parameter);
  const Batch batch = batch_of(communicator.rank());
  // Without a gradient it is not stepped.
  accelerator.backward(loss_of(model->forward(batch.input), batch.target));
  EXPECT_NO_THROW(optimizer.step());
  optimizer.zero_grad();
  accelerator.backward(loss_of(model->forward(front(batch.input)), batch.target));
  expect_says(message_of<UsageError>([&, &optimizer = optimizer] { optimizer.step(); }),
              "number 4 of parameter group 0");
});
TEST(Unsynchronized, ALayerInFrontIsNamed) {
  layer_in_front.on_threads({1, 2});
}

const RankCase in_a_closure("unsynchronized_in_a_closure", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  freeze(net, true);
  torch::optim::LBFGS lbfgs(net->second->parameters());
  auto [model, optimizer] = accelerator.prepare(net, lbfgs);
  freeze(net, false);
  for (const at::Tensor& parameter : net->first->parameters()) lbfgs.param_groups()[0].params().push_back(parameter);
  const auto closure = [&, &model = model, &optimizer = optimizer] {
    optimizer.zero_grad();
    const at::Tensor loss = loss_on(model, communicator.rank());
    loss.backward();
    return loss;
  };
  expect_says(message_of<UsageError>([&, &optimizer = optimizer] { optimizer.step(closure); }), "'first.weight'");
});
TEST(Unsynchronized, AStepWithAClosureNamesItToo) {
  in_a_closure.on_threads({1, 2});
}

// A gradient from before the freezing, which LibTorch's step would use.
const RankCase stale_gradient("unsynchronized_stale_gradient", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  loss_on(net, communicator.rank()).backward();
  freeze(net, true);
  net->second->zero_grad();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto first = net->first->weight.detach().clone();
  accelerator.backward(loss_on(model, communicator.rank()));
  expect_says(message_of<UsageError>([&, &optimizer = optimizer] { optimizer.step(); }),
              "the frozen parameter 'first.weight'");
  optimizer.zero_grad();
  accelerator.backward(loss_on(model, communicator.rank()));
  optimizer.step();
  EXPECT_TRUE(at::equal(net->first->weight, first));
});
TEST(Unsynchronized, AFrozenParameterWithAGradientIsNamed) {
  stale_gradient.on_threads({1, 2});
}

// ---- drift of parameters that no optimizer steps

const RankCase teacher("unsynchronized_teacher", [](const Communicator& communicator) {
  for (const bool frozen : {true, false}) {
    Accelerator accelerator({.communicator = communicator});
    Mlp student(1), teaching(2);
    if (frozen) {
      for (at::Tensor& parameter : teaching->parameters()) parameter.requires_grad_(false);
    }
    auto [model, other, optimizer] =
        accelerator.prepare(student, teaching, torch::optim::SGD(student->parameters(), 0.1));
    const auto step = [&, &optimizer = optimizer] {
      const Batch batch = batch_of(communicator.rank());
      accelerator.backward(loss_of(student->forward(batch.input), teaching->forward(batch.input).detach()));
      optimizer.step();
      optimizer.zero_grad();
    };
    step();
    // An average of weights that all ranks compute alike.
    change(teaching->first->bias, 0.25);
    step();
    if (communicator.rank() == communicator.size() - 1) change(teaching->second->bias, 0.25);
    expect_says(message_of<MismatchError>(step), "'second.bias'");
  }
});
TEST(Drift, OfAModelWithoutAnOptimizerIsFound) {
  teacher.on_threads({2, 3});
}

const RankCase no_optimizer("unsynchronized_no_optimizer", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp student(1), teaching(2);
  for (at::Tensor& parameter : teaching->parameters()) parameter.requires_grad_(false);
  accelerator.prepare(student, teaching);
  if (communicator.rank() == 1) change(teaching->second->bias, 0.25);
  expect_says(message_of<MismatchError>([&] { accelerator.backward(loss_on(student, 0)); }), "'second.bias'");
});
TEST(Drift, IsFoundWhereNothingHasAnOptimizer) {
  no_optimizer.on_threads({2});
}

const RankCase frozen_drift("unsynchronized_frozen_drift", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  freeze(net, true);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  if (communicator.rank() == 1) change(net->first->bias, 0.25);
  expect_says(message_of<MismatchError>([&, &model = model] { accelerator.backward(loss_on(model, 0)); }),
              "'first.bias'");
});
TEST(Drift, OfAFrozenParameterIsFound) {
  frozen_drift.on_threads({2});
}

// Local steps change other parameters of the same program by right.
const RankCase local_drift("unsynchronized_local_drift", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp local(1), synchronous(2);
  freeze(local, true);
  auto [a, b, first, second] =
      accelerator.prepare(local, synchronous, torch::optim::SGD(local->second->parameters(), 0.1),
                          torch::optim::SGD(synchronous->parameters(), 0.1));
  const auto step = [&, &first = first, &second = second](std::int64_t index) {
    accelerator.backward(loss_on(local, index));
    first.step();
    first.zero_grad();
    accelerator.backward(loss_on(synchronous, index));
    second.step();
    second.zero_grad();
  };
  {
    LocalSGD local_sgd(accelerator, local, {.local_sgd_steps = 2});
    const at::Tensor before = local->first->bias.detach().clone();
    change(local->first->bias, communicator.rank());
    for (int i = 0; i < 3; ++i) {
      EXPECT_NO_THROW(step(i * communicator.size() + communicator.rank()));
      local_sgd.step();
    }
    local->first->bias.data().copy_(before);
  }
  EXPECT_NO_THROW(step(communicator.rank()));
});
TEST(Drift, InLocalStepsIsNone) {
  local_drift.on_threads({1, 2});
}

// ---- a rank's own parameters

// The first layer is each rank's own. It is what one process would train on this rank's batches alone.
const RankCase own("unsynchronized_own", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::int64_t ranks = communicator.size();
  const std::int64_t rank = communicator.rank();
  const AcceleratorOptions options{.gradient_accumulation_steps = 2,
                                   .project = {.project_dir = communicator.broadcast_object(scratch.path().string())},
                                   .ignored_parameters = {"first"},
                                   .communicator = communicator};
  // One process: a first layer for each rank over one second layer.
  std::vector<Mlp> alone(static_cast<std::size_t>(ranks));
  std::vector<at::Tensor> all = alone[0]->second->parameters();
  for (std::int64_t r = 0; r < ranks; ++r) {
    Mlp& of_rank = alone[static_cast<std::size_t>(r)];
    fill(*of_rank->first, static_cast<std::uint64_t>(r) + 20);
    for (const at::Tensor& parameter : of_rank->first->parameters()) all.push_back(parameter);
  }
  torch::optim::Adam alone_adam(all, 0.01);
  const auto loss_alone = [&](std::int64_t r, std::int64_t index) {
    const Batch batch = batch_of(index);
    const at::Tensor hidden = at::tanh(alone[static_cast<std::size_t>(r)]->first(batch.input));
    return loss_of(alone[0]->second(hidden), batch.target);
  };
  const auto step_alone = [&](std::int64_t step) {
    alone_adam.zero_grad();
    at::Tensor shared = at::zeros({});
    for (std::int64_t r = 0; r < ranks; ++r) {
      at::Tensor mine = at::zeros({});
      for (std::int64_t i = 0; i < 2; ++i) mine = mine + loss_alone(r, (step * 2 + i) * ranks + r) / 2;
      mine.backward();
    }
    for (const at::Tensor& parameter : alone[0]->second->parameters()) parameter.mutable_grad().div_(ranks);
    alone_adam.step();
  };

  std::filesystem::path saved;
  std::string expected;
  const auto train = [&](bool resumes) {
    Accelerator accelerator(options);
    Mlp net;
    fill(*net->first, static_cast<std::uint64_t>(rank) + 20);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::Adam(net->parameters(), 0.01));
    if (resumes) accelerator.load_state(saved);
    for (std::int64_t step = resumes ? 2 : 0; step < 4; ++step) {
      if (step == 2 && !resumes) saved = accelerator.save_state();
      if (step == 3) accelerator.prepare(net, optimizer);
      for (std::int64_t i = 0; i < 2; ++i) {
        const auto window = accelerator.accumulate(model);
        accelerator.backward(loss_on(model, (step * 2 + i) * ranks + rank));
        accelerator.clip_grad_norm_(model, 1e9);
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    return net;
  };
  for (std::int64_t step = 0; step < 4; ++step) step_alone(step);
  const Mlp net = train(false);
  EXPECT_TRUE(close(net->second->parameters(), alone[0]->second->parameters(), 1e-5));
  EXPECT_TRUE(close(net->first->parameters(), alone[static_cast<std::size_t>(rank)]->first->parameters(), 1e-5));
  EXPECT_TRUE(bytes_of(*train(true)) == bytes_of(*net));
  communicator.barrier().wait();
});
TEST(IgnoredParameters, AreEachRanksOwn) {
  own.on_threads({1, 2, 3});
}

TEST(IgnoredParameters, AreThoseThatTheModelHas) {
  const TemporaryFolder scratch;
  Accelerator accelerator({.ignored_parameters = {"first"}, .communicator = Communicator()});
  Mlp net;
  accelerator.prepare(net);
  std::set<const at::TensorImpl*> old;
  for (const at::Tensor& parameter : net->first->parameters()) old.insert(parameter.unsafeGetTensorImpl());
  net->first = net->replace_module("first", torch::nn::Linear(6, 5));
  accelerator.prepare(net);
  // A parameter at the address of an old one.
  std::vector<torch::nn::Linear> others;
  const auto reuses = [&old](const at::Tensor& parameter) { return old.contains(parameter.unsafeGetTensorImpl()); };
  do {
    others.emplace_back(2, 2);
  } while (others.size() < 1000 && std::ranges::none_of(others.back()->parameters(), reuses));
  torch::nn::Linear& other = others.back();
  accelerator.prepare(other, torch::optim::SGD(other->parameters(), 0.1));
  accelerator.save_state({.folder = scratch.path() / "saved"});
  EXPECT_FALSE(read_checkpoint(scratch.path() / "saved").per_rank.at(0).get<bool>("local"));
}

// Clipping by a norm that all ranks share keeps the other parameters equal, and so does Local SGD.
const RankCase own_clipped("unsynchronized_own_clipped", [](const Communicator& communicator) {
  Accelerator accelerator({.ignored_parameters = {"first"}, .communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto step = [&, &model = model, &optimizer = optimizer](std::int64_t i) {
    accelerator.backward(loss_on(model, i * communicator.size() + communicator.rank()));
    accelerator.clip_grad_norm_(model, 1e-3);
    optimizer.step();
    optimizer.zero_grad();
  };
  for (std::int64_t i = 0; i < 3; ++i) ASSERT_NO_THROW(step(i));
  {
    LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 2});
    for (std::int64_t i = 3; i < 6; ++i) {
      step(i);
      local_sgd.step();
    }
  }
  for (std::int64_t i = 6; i < 8; ++i) ASSERT_NO_THROW(step(i));
  const auto all = communicator.all_gather_object(bytes_of(*net->second));
  for (const std::string& bytes : all) EXPECT_TRUE(bytes == all[0]);
  const auto first = communicator.all_gather_object(bytes_of(*net->first));
  EXPECT_EQ(first.back() == first[0], communicator.size() == 1);
});
TEST(IgnoredParameters, LeaveClippingAndLocalSgdToTheOthers) {
  own_clipped.on_threads({1, 2, 3});
}

const RankCase own_refused("unsynchronized_own_refused", [](const Communicator& communicator) {
  const AcceleratorOptions options{.ignored_parameters = {"first"}, .communicator = communicator};
  for (const char* name : {"frist", "fir", "first.weights"}) {
    Accelerator accelerator({.ignored_parameters = {name}, .communicator = communicator});
    expect_says(message_of<UsageError>([&] { accelerator.prepare(Mlp()); }), std::string("'") + name + "'");
  }
  AcceleratorOptions fp16 = options;
  fp16.mixed_precision = Precision::fp16;
  EXPECT_THROW(Accelerator{fp16}, UsageError);
  AcceleratorOptions reproducible = options;
  reproducible.reproducible = ReproducibleOptions{.micro_batches = communicator.size()};
  EXPECT_THROW(Accelerator{reproducible}, UsageError);
  Accelerator accelerator(options);
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  EXPECT_THROW(accelerator.join_uneven_inputs(), UsageError);
  EXPECT_THROW(optimizer.step([] { return at::zeros({}); }), UsageError);
});
TEST(IgnoredParameters, AreRefusedWhereTheyCannotBe) {
  own_refused.on_threads({1, 2});
}

}  // namespace
}  // namespace tutti::test::unsynchronized_test
