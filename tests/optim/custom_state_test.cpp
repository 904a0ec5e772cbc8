// The state of other optimizers: the values that their save() writes.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "optim/lazy_optimizer.h"
#include "optim/one_rank.h"
#include "optim/refused.h"
#include "tutti/detail/optim/optimizer_state.h"
#include "tutti/optim/plateau.h"
#include "tutti/optim/scheduler.h"
#include "tutti/optim/schedules.h"

namespace tutti::custom_state_test {
namespace {

namespace optim = torch::optim;
using test::expect_refused;

struct Problem {
  Problem()
      : value(at::linspace(-2, 2, 5).requires_grad_()),
        optimizer({value}, optim::LBFGSOptions(0.1).max_iter(4).history_size(2)) {}
  void step() {
    optimizer.step([this] {
      const at::AutoGradMode grad(true);
      optimizer.zero_grad();
      auto loss = (value - 0.5).pow(4).sum();
      loss.backward();
      return loss;
    });
  }
  at::Tensor value;
  optim::LBFGS optimizer;
};

const std::vector<std::string> one_name = {"value"};

TEST(CustomOptimizerState, AnyOtherOptimizerIsRestoredThroughItsSaveAndLoad) {
  Problem first;
  first.step();
  const StateDict state = copy_to_cpu(optimizer_state(first.optimizer, one_name));
  EXPECT_FALSE(state.part("saved").empty());
  Problem second;
  {
    const at::NoGradGuard no_grad;
    second.value.copy_(first.value);
  }
  load_optimizer_state(second.optimizer, one_name, state);
  first.step();
  second.step();
  EXPECT_TRUE(first.value.equal(second.value));
}

TEST(CustomOptimizerState, AnInvalidStateIsRefusedAndChangesNothing) {
  Problem problem;
  problem.step();
  const StateDict state = copy_to_cpu(optimizer_state(problem.optimizer, one_name));
  const auto refused_with = [&](const std::string& name, const StateValue& value, const std::string& why) {
    StateDict broken = state;
    broken.set(name, value);
    expect_refused([&] { load_optimizer_state(problem.optimizer, one_name, broken); }, why);
  };
  refused_with("saved.state", true, "nothing was loaded");
  refused_with("saved.a\"b", 1.0, "is not a valid name");
  refused_with("saved.list.%list", std::int64_t{1} << 60, "is an incomplete list");
  refused_with("saved.list.%list", std::int64_t{-1}, "is an incomplete list");
  refused_with("archive", at::ones({4}), "entries that save() does not write");
  std::string deep = "saved";
  for (int i = 0; i < 1000; ++i) deep += ".x";
  refused_with(deep, true, "nested too deeply");
  StateDict cut;
  const StateDict saved = state.part("saved").part("param_groups");
  cut.set("type", state.get<std::string>("type"));
  cut.set("saved.param_groups", saved);
  expect_refused([&] { load_optimizer_state(problem.optimizer, one_name, cut); }, "nothing was loaded");
  optim::Adam adam({at::ones({5}).requires_grad_()}, optim::AdamOptions(0.1));
  expect_refused([&] { load_optimizer_state(adam, one_name, state); }, "LBFGS");
  Problem untouched;
  {
    const at::NoGradGuard no_grad;
    untouched.value.copy_(problem.value);
  }
  load_optimizer_state(untouched.optimizer, one_name, state);
  problem.step();
  untouched.step();
  EXPECT_TRUE(problem.value.equal(untouched.value));
}

// Has more state than Adam, and saves it.
class Counting : public optim::Adam {
 public:
  using Adam::Adam;
  at::Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return Adam::step(std::move(closure));
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    Adam::save(archive);
    archive.write("steps", c10::IValue(steps));
  }
  void load(torch::serialize::InputArchive& archive) override {
    Adam::load(archive);
    c10::IValue value;
    archive.read("steps", value);
    steps = value.toInt();
  }
  std::int64_t steps = 0;
};

TEST(CustomOptimizerState, ADerivedOptimizerIsSavedThroughItsOwnSave) {
  const auto value = at::ones({2}).requires_grad_();
  Counting first({value}, optim::AdamOptions(0.1));
  value.mutable_grad() = at::ones({2});
  first.step();
  Counting second({value}, optim::AdamOptions(0.2));
  load_optimizer_state(second, one_name, optimizer_state(first, one_name));
  EXPECT_EQ(second.steps, 1);
  EXPECT_EQ(second.param_groups()[0].options().get_lr(), 0.1);
}

// Writes every type of value that save() may write.
class Talkative : public optim::SGD {
 public:
  using SGD::SGD;
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("with.dot and %", c10::IValue("text"));
    archive.write("nothing", c10::IValue());
    archive.write("numbers", c10::IValue(std::vector<std::int64_t>{1, 2}));
    archive.write("pair", c10::IValue(std::make_tuple(0.5, std::int64_t{7})));
    archive.write("tensors", c10::IValue(c10::List<at::Tensor>({at::ones({2}), at::zeros({3})})));
    archive.write("no_tensors", c10::IValue(c10::List<at::Tensor>()));
    torch::serialize::OutputArchive empty(archive.compilation_unit());
    archive.write("empty", empty);
  }
  void load(torch::serialize::InputArchive& archive) override {
    const auto value = [&archive](const std::string& key) {
      c10::IValue read;
      archive.read(key, read);
      return read;
    };
    EXPECT_EQ(value("with.dot and %").toStringRef(), "text");
    EXPECT_TRUE(value("nothing").isNone());
    EXPECT_EQ(value("numbers").toIntVector(), (std::vector<std::int64_t>{1, 2}));
    EXPECT_EQ(value("pair").toTupleRef().elements().at(0).toDouble(), 0.5);
    EXPECT_EQ(value("pair").toTupleRef().elements().at(1).toInt(), 7);
    ASSERT_EQ(value("tensors").toTensorVector().size(), 2U);
    EXPECT_TRUE(value("tensors").toTensorVector()[1].equal(at::zeros({3})));
    EXPECT_TRUE(value("no_tensors").toTensorVector().empty());
    torch::serialize::InputArchive empty;
    EXPECT_TRUE(archive.try_read("empty", empty));
    loaded = true;
  }
  bool loaded = false;
};

TEST(CustomOptimizerState, LoadReceivesEveryTypeThatSaveMayWrite) {
  const std::vector<at::Tensor> values = {at::ones({2}).requires_grad_()};
  const Talkative first(values, optim::SGDOptions(0.1));
  Talkative second(values, optim::SGDOptions(0.1));
  load_optimizer_state(second, one_name, copy_to_cpu(optimizer_state(first, one_name)));
  EXPECT_TRUE(second.loaded);
}

struct Quoting : Talkative {
  using Talkative::Talkative;
  void save(torch::serialize::OutputArchive& archive) const override { archive.write("a\"b", c10::IValue(1)); }
};

TEST(CustomOptimizerState, AKeyThatLoadCannotReadIsRefusedOnSaving) {
  const std::vector<at::Tensor> values = {at::ones({2}).requires_grad_()};
  const Quoting optimizer(values, optim::SGDOptions(0.1));
  expect_refused<UsageError>([&] { optimizer_state(optimizer, one_name); }, "cannot be saved in this state");
}

class Forgetful : public optim::Optimizer {
 public:
  explicit Forgetful(const std::vector<at::Tensor>& values)
      : Optimizer(values, std::make_unique<optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override { return {}; }
};

TEST(CustomOptimizerState, AnOptimizerThatSavesNothingAfterAStepIsRefused) {
  Forgetful optimizer({at::ones({2}).requires_grad_()});
  EXPECT_TRUE(optimizer_state(optimizer, one_name).contains("type"));
  const auto refused = [&](bool has_stepped) {
    expect_refused<UsageError>([&] { optimizer_state(optimizer, one_name, has_stepped); }, "Forgetful");
  };
  refused(true);
  optimizer.state()[optimizer.param_groups()[0].params()[0].unsafeGetTensorImpl()] =
      std::make_unique<optim::SGDParamState>();
  refused(false);
}

TEST(CustomOptimizerState, APreparedOptimizerThatSavesNothingIsRefusedAfterItsFirstStep) {
  const test::OneRank one;
  Optimizer optimizer = one.with(std::make_shared<Forgetful>(std::vector<at::Tensor>{one.weight}));
  optimizer.load_state_dict(optimizer.state_dict());
  one.backward();
  optimizer.step();
  expect_refused<UsageError>([&] { optimizer.state_dict(); }, "Forgetful");
}

TEST(CustomOptimizerState, AStateThatTheFirstStepCreatesIsRestored) {
  const auto value = at::ones({2}).requires_grad_();
  test::Lazy fresh({value}), stepped({value}), loaded({value});
  const StateDict empty = optimizer_state(fresh, one_name);
  value.mutable_grad() = at::ones({2});
  stepped.step();
  load_optimizer_state(loaded, one_name, copy_to_cpu(optimizer_state(stepped, one_name)));
  EXPECT_TRUE(loaded.momentum.equal(stepped.momentum));
  load_optimizer_state(loaded, one_name, empty);
  EXPECT_FALSE(loaded.momentum.defined());
  load_optimizer_state(loaded, one_name, empty);
}

TEST(CustomOptimizerState, AStateFromBeforeTheFirstStepIsSavedAgain) {
  const test::OneRank one;
  Optimizer optimizer = one.with(std::make_shared<test::Lazy>(std::vector<at::Tensor>{one.weight}));
  const StateDict empty = copy_to_cpu(optimizer.state_dict());
  one.backward();
  optimizer.step();
  optimizer.load_state_dict(empty);
  EXPECT_NO_THROW(optimizer.state_dict());
}

struct WithoutRate : torch::optim::OptimizerCloneableOptions<WithoutRate> {};

class Rateless : public optim::Optimizer {
 public:
  explicit Rateless(const std::vector<at::Tensor>& values) : Optimizer(values, std::make_unique<WithoutRate>()) {}
  at::Tensor step(LossClosure) override {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : param_groups()[0].params()) parameter.sub_(parameter.grad());
    return {};
  }
};

TEST(CustomOptimizer, WithoutALearningRateSteps) {
  const test::OneRank one;
  Optimizer optimizer = one.with(std::make_shared<Rateless>(std::vector<at::Tensor>{one.weight}));
  one.backward();
  optimizer.step();
  EXPECT_TRUE(one.weight.equal(-at::ones({2})));
  EXPECT_TRUE(optimizer.last_step_rates().empty());
  EXPECT_EQ(optimizer.learning_rate(), 0);
  expect_refused<UsageError>([&] { Scheduler(optimizer, linear_with_warmup(0, 10)); }, "has no learning rate");
  expect_refused<UsageError>([&] { ReduceLROnPlateau plateau(optimizer); }, "has no learning rate");
  expect_refused<UsageError>([&] { optimizer.set_learning_rate(0.1); }, "has no learning rate");
}

TEST(CustomOptimizerState, ALoadThatKeepsStateIsRefused) {
  const auto value = at::ones({2}).requires_grad_();
  test::Lazy fresh({value}), stepped({value});
  value.mutable_grad() = at::ones({2});
  stepped.step();
  stepped.keeps_state = true;
  const at::Tensor before = stepped.momentum.clone();
  expect_refused([&] { load_optimizer_state(stepped, one_name, optimizer_state(fresh, one_name)); },
                 "clear the state first in load()");
  EXPECT_TRUE(stepped.momentum.equal(before));
}

struct Refusing : test::Lazy {
  using Lazy::Lazy;
  void load(torch::serialize::InputArchive& archive) override {
    Lazy::load(archive);
    if (momentum.defined()) throw std::runtime_error("not this momentum");
  }
};

TEST(CustomOptimizerState, AFailedLoadOfAFirstStateLeavesNone) {
  const auto value = at::ones({2}).requires_grad_();
  Refusing fresh({value});
  StateDict state = optimizer_state(fresh, one_name);
  state.set("saved.momentum", at::ones({2}));
  expect_refused([&] { load_optimizer_state(fresh, one_name, state); }, "nothing was loaded: not this momentum");
  EXPECT_FALSE(fresh.momentum.defined());
}

}  // namespace
}  // namespace tutti::custom_state_test
