// The state of the optimizers whose values have PyTorch's names.
#include "tutti/detail/optim/optimizer_state.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/states.h"
#include "optim/refused.h"

namespace tutti::optimizer_state_test {
namespace {

namespace optim = torch::optim;
using test::expect_refused;

const std::vector<std::string> names = {"weight", "bias", "other.weight"};

std::vector<at::Tensor> parameters() {
  return {at::linspace(-1, 1, 12).view({3, 4}).requires_grad_(), at::linspace(0, 1, 3).requires_grad_(),
          at::linspace(2, 3, 8).view({2, 2, 2}).requires_grad_()};
}

// Two groups with different options.
using Groups = std::vector<optim::OptimizerParamGroup>;
using Make = std::function<std::unique_ptr<optim::Optimizer>(const Groups&)>;

struct Kind {
  std::string name;
  Make make;
};

template <typename Type, typename Options>
Kind kind(const std::string& name, const Options& options) {
  return {name, [options](const Groups& groups) { return std::make_unique<Type>(groups, options); }};
}

std::vector<Kind> kinds() {
  return {
      kind<optim::Adam>("Adam", optim::AdamOptions(0.1).betas({0.8, 0.9}).eps(1e-5).weight_decay(0.1)),
      kind<optim::Adam>("Adam with amsgrad", optim::AdamOptions(0.1).amsgrad(true)),
      kind<optim::AdamW>("AdamW", optim::AdamWOptions(0.1).weight_decay(0.3)),
      kind<optim::SGD>("SGD", optim::SGDOptions(0.1)),
      kind<optim::SGD>("SGD with momentum", optim::SGDOptions(0.1).momentum(0.9).dampening(0.1)),
      kind<optim::SGD>("SGD of Nesterov", optim::SGDOptions(0.1).momentum(0.9).nesterov(true)),
      kind<optim::RMSprop>("RMSprop", optim::RMSpropOptions(0.1).alpha(0.8)),
      kind<optim::RMSprop>("RMSprop with all", optim::RMSpropOptions(0.1).momentum(0.9).centered(true)),
      kind<optim::Adagrad>("Adagrad", optim::AdagradOptions(0.1).lr_decay(0.1).initial_accumulator_value(0.5)),
  };
}

struct Trained {
  explicit Trained(const Make& make) : values(parameters()) {
    Groups groups;
    groups.emplace_back(std::vector<at::Tensor>{values[0], values[1]});
    groups.emplace_back(std::vector<at::Tensor>{values[2]});
    optimizer = make(groups);
  }
  void step(int count) {
    for (int i = 0; i < count; ++i, ++steps) {
      for (std::size_t p = 0; p < values.size(); ++p) {
        const bool used =
            p != 1 || steps > 0;  // parameter 1 is first used in the second step, so it has no state after one step
        values[p].mutable_grad() = used ? values[p].detach() * (0.1 * (steps + 1)) + 0.3 : at::Tensor();
      }
      optimizer->step();
    }
  }
  void copy_values(const Trained& other) {
    const at::NoGradGuard no_grad;
    for (std::size_t p = 0; p < values.size(); ++p) values[p].copy_(other.values[p]);
    steps = other.steps;
  }
  StateDict state() const { return optimizer_state(*optimizer, names); }

  std::vector<at::Tensor> values;
  std::unique_ptr<optim::Optimizer> optimizer;
  int steps = 0;
};

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) return false;
  }
  return true;
}

bool equal(const StateDict& a, const StateDict& b) {
  return static_cast<bool>(test::same(a, b));
}

TEST(OptimizerState, ARestoredOptimizerContinuesWithTheSameBits) {
  for (const Kind& each : kinds()) {
    for (const int before : {0, 1, 3}) {
      SCOPED_TRACE(each.name + " after " + std::to_string(before) + " steps");
      Trained first(each.make);
      first.step(before);
      first.optimizer->param_groups()[1].options().set_lr(0.03);
      const StateDict state = copy_to_cpu(first.state());
      Trained second(each.make);
      second.step(2);  // state that loading overwrites
      second.copy_values(first);
      load_optimizer_state(*second.optimizer, names, state);
      EXPECT_TRUE(equal(second.state(), state));
      first.step(3);
      second.step(3);
      EXPECT_TRUE(equal(first.values, second.values));
      EXPECT_TRUE(equal(first.state(), second.state()));
      // The loaded state does not share tensors with the optimizer. (Plain SGD has none.)
      EXPECT_EQ(equal(second.state(), state), each.name == "SGD");
    }
  }
}

TEST(OptimizerState, IsConvertedToTheParametersLayout) {
  for (const Kind& each : kinds()) {
    SCOPED_TRACE(each.name);
    Trained moved(each.make);
    moved.step(2);
    for (at::Tensor& value : moved.values) {
      if (value.dim() > 1) value.set_data(value.detach().transpose(0, 1).contiguous().transpose(0, 1));
    }
    const StateDict before = copy_to_cpu(moved.state());
    convert_optimizer_state(*moved.optimizer);
    const StateDict converted = moved.state();
    EXPECT_TRUE(equal(copy_to_cpu(converted), before));
    for (const auto& [name, value] : converted.values()) {
      const auto* tensor = std::get_if<at::Tensor>(&value);
      if (tensor == nullptr || tensor->dim() < 2) continue;
      const auto is_like = [tensor](const at::Tensor& parameter) {
        return parameter.sizes() == tensor->sizes() && parameter.strides() == tensor->strides();
      };
      EXPECT_TRUE(std::ranges::any_of(moved.values, is_like)) << name;
    }
  }
}

TEST(OptimizerState, IsConvertedToTheParametersAsLoadingConvertsIt) {
  for (const Kind& each : kinds()) {
    SCOPED_TRACE(each.name);
    Trained moved(each.make);
    moved.step(2);
    const StateDict before = moved.state();
    convert_optimizer_state(*moved.optimizer);
    const StateDict unchanged = moved.state();
    for (const auto& [name, value] : unchanged.values()) {
      const auto* tensor = std::get_if<at::Tensor>(&value);
      if (tensor == nullptr) continue;
      EXPECT_TRUE(tensor->is_same(before.get<at::Tensor>(name))) << name;
    }
    for (at::Tensor& value : moved.values) value.set_data(value.detach().to(at::kBFloat16));
    convert_optimizer_state(*moved.optimizer);
    const StateDict converted = copy_to_cpu(moved.state());
    for (const auto& [name, value] : converted.values()) {
      const auto* tensor = std::get_if<at::Tensor>(&value);
      if (tensor == nullptr) continue;
      EXPECT_EQ(tensor->scalar_type(), at::kBFloat16) << name;
    }
    load_optimizer_state(*moved.optimizer, names, before);
    EXPECT_TRUE(equal(moved.state(), converted));
  }
}

std::string keys_of(const StateDict& state) {
  std::string keys;
  for (const auto& [name, value] : state.values()) keys += name + " ";
  return keys;
}

TEST(OptimizerState, NamesAreThoseOfPyTorch) {
  Trained adam(kinds()[1].make);
  adam.step(1);
  const StateDict state = adam.state();
  EXPECT_EQ(keys_of(state),
            "group.0.amsgrad group.0.betas group.0.eps group.0.lr group.0.params group.0.weight_decay "
            "group.1.amsgrad group.1.betas group.1.eps group.1.lr group.1.params group.1.weight_decay "
            "state.other.weight.exp_avg state.other.weight.exp_avg_sq state.other.weight.max_exp_avg_sq "
            "state.other.weight.step state.weight.exp_avg state.weight.exp_avg_sq state.weight.max_exp_avg_sq "
            "state.weight.step type ");
  EXPECT_EQ(state.get<std::int64_t>("state.weight.step"), 1);
  EXPECT_EQ(state.get<std::vector<std::int64_t>>("group.1.params"), std::vector<std::int64_t>{2});
  EXPECT_EQ(state.get<std::vector<double>>("group.0.betas"), (std::vector<double>{0.9, 0.999}));
  Trained sgd(kinds()[4].make);
  sgd.step(1);
  EXPECT_EQ(keys_of(sgd.state().part("group.0")), "dampening lr momentum nesterov params weight_decay ");
  EXPECT_EQ(keys_of(sgd.state().part("state")), "other.weight.momentum_buffer weight.momentum_buffer ");
  Trained rmsprop(kinds()[7].make);
  rmsprop.step(1);
  EXPECT_EQ(keys_of(rmsprop.state().part("group.0")), "alpha centered eps lr momentum params weight_decay ");
  EXPECT_EQ(keys_of(rmsprop.state().part("state.weight")), "grad_avg momentum_buffer square_avg step ");
  Trained adagrad(kinds()[8].make);
  EXPECT_EQ(keys_of(adagrad.state().part("group.0")), "eps initial_accumulator_value lr lr_decay params weight_decay ");
  EXPECT_EQ(keys_of(adagrad.state().part("state.bias")), "step sum ");
}

TEST(OptimizerState, RefusesAStateThatDoesNotFitAndChangesNothing) {
  Trained saved(kinds()[0].make);
  saved.step(2);
  const StateDict good = copy_to_cpu(saved.state());
  Trained adam(kinds()[0].make);
  adam.step(3);
  const StateDict before = copy_to_cpu(adam.state());
  const auto refuses = [&](const StateDict& state, const std::string& part) {
    expect_refused([&] { load_optimizer_state(*adam.optimizer, names, state); }, part);
    EXPECT_TRUE(equal(adam.state(), before));
  };
  const auto with = [&](const std::string& name, const StateValue& value) {
    StateDict state = good;
    state.set(name, value);
    return state;
  };
  const auto without = [&](const std::string& name) {
    StateDict state;
    for (const auto& [key, value] : good.values()) {
      if (key != name) state.set(key, value);
    }
    return state;
  };
  Trained sgd(kinds()[4].make);
  refuses(sgd.state(), "SGD");
  refuses(StateDict(), "'type'");
  refuses(with("state.other.weight.exp_avg_sq", at::ones({2, 4})), "'state.other.weight.exp_avg_sq' is [2, 4]");
  refuses(with("state.other.weight.exp_avg_sq", at::Tensor()), "undefined");
  refuses(with("state.other.weight.step", 2.0), "'state.other.weight.step'");
  refuses(with("state.third.exp_avg", at::ones({2})), "'state.third.exp_avg'");
  refuses(with("group.2.lr", 0.5), "'group.2.lr'");
  refuses(with("group.1.params", std::vector<std::int64_t>{2, 3}), "2 parameters");
  refuses(with("group.1.betas", std::vector<double>{0.5}), "'group.1.betas'");
  refuses(without("group.1.lr"), "'group.1.lr'");
  refuses(without("state.other.weight.exp_avg"), "'state.other.weight.exp_avg'");
  const std::vector<std::string> renamed = {"weight", "bias", "new.weight"};
  expect_refused([&] { load_optimizer_state(*adam.optimizer, renamed, good); }, "'state.other.weight.exp_avg'");
  load_optimizer_state(*adam.optimizer, names, good);
  EXPECT_TRUE(equal(adam.state(), good));
}

TEST(OptimizerState, AdagradWithoutItsStateIsRefused) {
  Trained adagrad(kinds()[8].make);
  StateDict state;
  const StateDict whole = adagrad.state();
  for (const auto& [name, value] : whole.values()) {
    if (!name.starts_with("state.bias")) state.set(name, value);
  }
  expect_refused([&] { load_optimizer_state(*adagrad.optimizer, names, state); }, "'state.bias.step'");
}

TEST(OptimizerState, NamesMustFitTheParameters) {
  const Trained adam(kinds()[0].make);
  const std::vector<std::string> few = {"weight", "bias"};
  const std::vector<std::string> twice = {"weight", "bias", "bias"};
  expect_refused<UsageError>([&] { optimizer_state(*adam.optimizer, few); }, "3 parameters");
  expect_refused<UsageError>([&] { optimizer_state(*adam.optimizer, twice); }, "'bias'");
  expect_refused<UsageError>([&] { load_optimizer_state(*adam.optimizer, few, adam.state()); }, "3 parameters");
}

TEST(OptimizerState, GroupsNeedOptionsOfTheOptimizersClass) {
  Trained adam(kinds()[0].make);
  const StateDict state = adam.state();
  adam.optimizer->param_groups()[1].set_options(std::make_unique<optim::SGDOptions>(0.1));
  expect_refused<UsageError>([&] { adam.state(); }, "another class than torch::optim::AdamOptions");
  expect_refused<UsageError>([&] { load_optimizer_state(*adam.optimizer, names, state); }, "AdamOptions");
}

TEST(OptimizerState, StateFollowsTheParametersDtypeAndMemoryFormat) {
  const auto make = [](at::ScalarType type) {
    return at::ones({2, 3, 4, 5}, type).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  };
  const std::vector<std::string> one = {"w"};
  const auto saved = make(at::kDouble);
  optim::Adam first({saved}, optim::AdamOptions(0.1));
  saved.mutable_grad() = at::full({2, 3, 4, 5}, 0.25, at::kDouble);
  first.step();
  const auto value = make(at::kFloat);
  optim::Adam second({value}, optim::AdamOptions(0.1));
  load_optimizer_state(second, one, copy_to_cpu(optimizer_state(first, one)));
  const StateDict state = optimizer_state(second, one);
  const auto& average = state.get<at::Tensor>("state.w.exp_avg");
  EXPECT_EQ(average.scalar_type(), at::kFloat);
  EXPECT_EQ(average.strides(), value.strides());
  EXPECT_TRUE(average.equal(optimizer_state(first, one).get<at::Tensor>("state.w.exp_avg").to(at::kFloat)));
}

}  // namespace
}  // namespace tutti::optimizer_state_test
