#include "optim/fused_step.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "optim/one_rank.h"
#include "tutti/optim/optimizer_state.h"

namespace tutti {
namespace {

namespace optim = torch::optim;
using Groups = std::vector<optim::OptimizerParamGroup>;
using Tensors = std::vector<at::Tensor>;

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(seed);
  return at::randn(sizes, at::kDouble).to(dtype);
}

/// Lengths on both sides of a vector's, a scalar, nothing, and a weight that is stored channels last.
Tensors make_parameters(at::ScalarType dtype) {
  const std::vector<std::vector<std::int64_t>> shapes{{33, 17}, {1}, {}, {0}, {15}, {257}, {4, 3, 5, 5}, {70000}};
  Tensors parameters;
  for (const auto& shape : shapes) parameters.push_back(random(shape, parameters.size(), dtype));
  parameters[6] = parameters[6].contiguous(at::MemoryFormat::ChannelsLast);
  for (at::Tensor& parameter : parameters) parameter.requires_grad_();
  return parameters;
}

/// Parameter 1 is never used, 4 only from the tenth step on, 5 now and then.
void make_gradients(const Tensors& parameters, int step) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool used = i != 1 && (i != 4 || step >= 10) && (i != 5 || step % 3 == 0);
    at::Tensor gradient;
    if (used) {
      const auto values = random(parameters[i].sizes(), 1000 * step + i, parameters[i].scalar_type());
      gradient = at::empty_like(parameters[i].detach()).copy_(values.mul_(0.1));
    }
    parameters[i].mutable_grad() = gradient;
  }
}

struct Case {
  const char* name;
  std::function<std::unique_ptr<optim::Optimizer>(const Tensors&)> make;
};

/// Two groups, of which the second has options of its own.
template <typename Optimizer, typename Options>
Case make_case(const char* name, const Options& first, const Options& second) {
  return {name, [=](const Tensors& parameters) -> std::unique_ptr<optim::Optimizer> {
            Groups groups;
            groups.emplace_back(Tensors(parameters.begin(), parameters.begin() + 3), std::make_unique<Options>(first));
            groups.emplace_back(Tensors(parameters.begin() + 3, parameters.end()), std::make_unique<Options>(second));
            return std::make_unique<Optimizer>(groups, first);
          }};
}

using optim::AdagradOptions;
using optim::AdamOptions;
using optim::AdamWOptions;
using optim::SGDOptions;

const std::vector<Case> cases{
    make_case<optim::AdamW>("adamw", AdamWOptions(1e-2), AdamWOptions(3e-3).weight_decay(0.1).betas({0.8, 0.95})),
    make_case<optim::AdamW>("adamw_amsgrad", AdamWOptions(1e-2).amsgrad(true),
                            AdamWOptions(3e-3).weight_decay(0).amsgrad(true).eps(1e-6)),
    make_case<optim::Adam>("adam", AdamOptions(1e-2), AdamOptions(3e-3).weight_decay(0.1).betas({0.8, 0.95})),
    make_case<optim::Adam>("adam_amsgrad", AdamOptions(1e-2).amsgrad(true), AdamOptions(3e-3).amsgrad(true)),
    make_case<optim::SGD>("sgd", SGDOptions(1e-2), SGDOptions(3e-3).weight_decay(0.1)),
    make_case<optim::SGD>("sgd_momentum", SGDOptions(1e-2).momentum(0.9),
                          SGDOptions(3e-3).momentum(0.8).weight_decay(0.1).dampening(0.3)),
    make_case<optim::SGD>("sgd_nesterov", SGDOptions(1e-2).momentum(0.9).nesterov(true),
                          SGDOptions(3e-3).momentum(0.8).weight_decay(0.1).nesterov(true)),
    make_case<optim::Adagrad>("adagrad", AdagradOptions(1e-2),
                              AdagradOptions(3e-3).weight_decay(0.1).lr_decay(0.01).initial_accumulator_value(0.1)),
};

/// A rounding of the largest element: what one operation may be off by.
double ulp(const at::Tensor& values) {
  const double largest = values.numel() == 0 ? 0 : values.abs().max().item().toDouble();
  return largest * (values.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                        : std::numeric_limits<float>::epsilon());
}

void expect_close(const Tensors& values, const Tensors& expected, double ulps, const std::string& where) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].numel() == 0) continue;
    const double off = (values[i] - expected[i]).abs().max().item().toDouble();
    EXPECT_LE(off, ulps * ulp(expected[i])) << where << ", tensor " << i;
  }
}

std::vector<std::string> names_of(const Tensors& parameters) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i) names.push_back(std::to_string(i));
  return names;
}

/// Tensors close, numbers of steps equal.
void expect_close_state(const StateDict& state, const StateDict& expected, double ulps, const std::string& where) {
  ASSERT_EQ(state.values().size(), expected.values().size()) << where;
  for (const auto& [key, value] : expected.values()) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      expect_close({state.get<at::Tensor>(key)}, {*tensor}, ulps, where + " " + key);
    } else if (const auto* steps = std::get_if<std::int64_t>(&value)) {
      EXPECT_EQ(state.get<std::int64_t>(key), *steps) << where << " " << key;
    }
  }
}

void set_rate(optim::Optimizer& optimizer, double factor) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(group.options().get_lr() * factor);
}

class FusedStep : public testing::TestWithParam<std::tuple<std::size_t, at::ScalarType>> {
 protected:
  const Case& which() const { return cases[std::get<0>(GetParam())]; }
  at::ScalarType dtype() const { return std::get<1>(GetParam()); }
};

TEST_P(FusedStep, DoesWhatLibTorchsStepDoes) {
  const Tensors parameters = make_parameters(dtype());
  const Tensors references = make_parameters(dtype());
  const auto optimizer = which().make(parameters);
  const auto reference = which().make(references);
  for (int step = 1; step <= 50; ++step) {
    make_gradients(parameters, step);
    make_gradients(references, step);
    ASSERT_EQ(fused_step(*optimizer), std::nullopt);
    reference->step();
    if (step == 25) {
      set_rate(*optimizer, 0.3);
      set_rate(*reference, 0.3);
    }
  }
  expect_close(parameters, references, 4, which().name);
  const auto names = names_of(parameters);
  expect_close_state(optimizer_state(*optimizer, names), optimizer_state(*reference, names), 8, which().name);
}

TEST_P(FusedStep, TakesTurnsWithLibTorchs) {
  const Tensors parameters = make_parameters(dtype());
  const Tensors references = make_parameters(dtype());
  const auto optimizer = which().make(parameters);
  const auto reference = which().make(references);
  const auto names = names_of(parameters);
  for (int step = 1; step <= 20; ++step) {
    make_gradients(parameters, step);
    make_gradients(references, step);
    if (step % 4 < 2) {
      ASSERT_EQ(fused_step(*optimizer), std::nullopt);
    } else {
      optimizer->step();
    }
    // What is saved and restored on the way is no longer the tensors that it began with.
    if (step == 12) load_optimizer_state(*optimizer, names, optimizer_state(*optimizer, names));
    reference->step();
  }
  expect_close(parameters, references, 4, which().name);
}

TEST_P(FusedStep, IsTheSameOnAnyNumberOfThreads) {
  const auto train = [&](int threads) {
    at::set_num_threads(threads);
    const Tensors parameters = make_parameters(dtype());
    const auto optimizer = which().make(parameters);
    for (int step = 1; step <= 5; ++step) {
      make_gradients(parameters, step);
      EXPECT_EQ(fused_step(*optimizer), std::nullopt);
    }
    return parameters;
  };
  const Tensors one = train(1);
  for (const int threads : {2, 3}) {
    const Tensors several = train(threads);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], several[i])) << i;
  }
  at::set_num_threads(1);
}

std::string name_of(const testing::TestParamInfo<FusedStep::ParamType>& instance) {
  const auto [which, dtype] = instance.param;
  return std::string(cases[which].name) + "_" + toString(dtype);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, FusedStep,
                         testing::Combine(testing::Range<std::size_t>(0, cases.size()),
                                          testing::Values(at::kFloat, at::kDouble)),
                         name_of);

TEST(FusedStepVersions, CountWhatIsWritten) {
  for (const Case& one : cases) {
    const Tensors parameters = make_parameters(at::kFloat);
    const auto optimizer = one.make(parameters);
    make_gradients(parameters, 1);
    const auto before = parameters[0]._version();
    const auto unused = parameters[1]._version();
    ASSERT_EQ(fused_step(*optimizer), std::nullopt);
    EXPECT_GT(parameters[0]._version(), before) << one.name;
    EXPECT_EQ(parameters[1]._version(), unused) << one.name;
  }
}

TEST(FusedStepVersions, AnOldGraphIsNoticed) {
  const at::Tensor weight = at::ones({3}).requires_grad_();
  optim::SGD optimizer({weight}, SGDOptions(0.1));
  const at::Tensor loss = (weight * weight).sum();
  loss.backward({}, /*retain_graph=*/true);
  ASSERT_EQ(fused_step(optimizer), std::nullopt);
  EXPECT_THROW(loss.backward(), c10::Error);
}

/// Steps twice, of which the second time must be refused, for a reason that has `word`, with nothing changed.
void expect_refused(optim::Optimizer& optimizer, const Tensors& parameters, const std::function<void()>& spoil,
                    const std::string& word) {
  spoil();
  const auto names = names_of(parameters);
  Tensors before;
  for (const at::Tensor& parameter : parameters) before.push_back(parameter.detach().clone());
  const std::size_t states = optimizer.state().size();
  const auto refusal = fused_step(optimizer);
  ASSERT_TRUE(refusal) << word;
  EXPECT_NE(refusal->find(word), std::string::npos) << *refusal;
  for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(at::equal(parameters[i], before[i])) << word;
  EXPECT_EQ(optimizer.state().size(), states) << word;
}

TEST(FusedStepRefusal, OtherClassesRunAsTheyAre) {
  struct Own : optim::SGD {
    using SGD::SGD;
    at::Tensor step(LossClosure) override { return {}; }
  };
  const at::Tensor weight = at::ones({3}).requires_grad_();
  weight.mutable_grad() = at::ones({3});
  Own own({weight}, SGDOptions(0.1));
  expect_refused(
      own, {weight}, [] {}, "class of optimizer");
  optim::RMSprop rmsprop({weight}, optim::RMSpropOptions(0.1));
  expect_refused(
      rmsprop, {weight}, [] {}, "class of optimizer");
}

TEST(FusedStepRefusal, WhatTheKernelsWouldGetWrong) {
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const auto refused = [&](const std::function<void(Tensors&)>& spoil, const std::string& word,
                             at::ScalarType dtype = at::kFloat) {
      Tensors parameters = make_parameters(dtype);
      const auto optimizer = one.make(parameters);
      expect_refused(
          *optimizer, parameters,
          [&] {
            make_gradients(parameters, 1);
            spoil(parameters);
          },
          word);
    };
    refused([](Tensors&) {}, "neither float nor double", at::kBFloat16);
    refused([](Tensors&) {}, "neither float nor double", at::kHalf);
    // Later than others, so that something might have been changed.
    refused([](Tensors& all) { all[6].mutable_grad() = all[6].grad().contiguous(); }, "parameter 3 of group 1");
    refused([](Tensors& all) { all[0].mutable_grad() = random({17, 33}, 1).t(); }, "its gradient has another");
    refused([](Tensors& all) { all[5].mutable_grad() = at::ones({257}).to_sparse(); }, "its gradient has another");
    refused([](Tensors& all) { all[7].set_data(random({70000, 2}, 1).select(1, 0)); }, "gaps or overlaps");
  }
}

TEST(FusedStepRefusal, AStateThatTheKernelsWouldGetWrong) {
  const at::Tensor weight = random({8, 6}, 1).requires_grad_();
  optim::AdamW optimizer({weight}, AdamWOptions(0.1));
  weight.mutable_grad() = at::ones({8, 6});
  ASSERT_EQ(fused_step(optimizer), std::nullopt);
  auto& state = static_cast<optim::AdamWParamState&>(*optimizer.state().begin()->second);
  expect_refused(
      optimizer, {weight},
      [&] {
        state.exp_avg(random({6, 8}, 1).t());
      },
      "its state has another");
  EXPECT_EQ(state.step(), 1);
}

// What Adam keeps is a state of its own kind: an unknown one must not be overwritten.
TEST(FusedStepRefusal, AStateOfAnotherKind) {
  const at::Tensor weight = at::ones({3}).requires_grad_();
  weight.mutable_grad() = at::ones({3});
  optim::SGD optimizer({weight}, SGDOptions(0.1).momentum(0.9));
  optimizer.state()[weight.unsafeGetTensorImpl()] = std::make_unique<optim::AdamParamState>();
  expect_refused(
      optimizer, {weight}, [] {}, "of another kind");
}

TEST(FusedStepRefusal, NothingToStepIsNoRefusal) {
  const at::Tensor weight = at::ones({3}).requires_grad_();
  optim::AdamW optimizer({weight}, AdamWOptions(0.1));
  EXPECT_EQ(fused_step(optimizer), std::nullopt);
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(PreparedOptimizer, FusesUnlessToldOtherwise) {
  for (const bool fused : {true, false}) {
    const test::OneRank rank;
    Optimizer optimizer(std::make_shared<optim::AdamW>(Tensors{rank.weight}, AdamWOptions(0.1)), rank.reducer,
                        {.fused = fused});
    rank.backward();
    optimizer.step();
    EXPECT_EQ(optimizer.not_fused_because().empty(), fused) << optimizer.not_fused_because();
    EXPECT_NEAR(rank.weight[0].item<float>(), -0.1, 1e-6);
  }
}

TEST(PreparedOptimizer, TellsWhyItDoesNotFuse) {
  const test::OneRank rank;
  Optimizer optimizer = rank.with(std::make_shared<optim::RMSprop>(Tensors{rank.weight}, optim::RMSpropOptions(0.1)));
  rank.backward();
  optimizer.step();
  EXPECT_NE(optimizer.not_fused_because().find("no fused kernel"), std::string::npos);
  EXPECT_NE(rank.weight[0].item<float>(), 0);
}

}  // namespace
}  // namespace tutti
