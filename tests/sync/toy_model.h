#pragma once
// A model of two parameters with a reducer and an optimizer. A ToyPass gives the gradients of a pass.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "tutti/detail/sync/reducer.h"
#include "tutti/detail/sync/sync_scopes.h"
#include "tutti/optim/optimizer.h"

namespace tutti::test {

/// Throws in backward.
struct Explosive : torch::autograd::Function<Explosive> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("boom");
  }
};

struct ToyPass {
  std::optional<double> a{};  ///< each element of the gradient; nullopt if the pass does not use the parameter
  std::optional<double> b{};
  double loss_scale = 1;
  bool explodes = false;  ///< throws after reaching b and before reaching a
};

struct ToyModel {
  explicit ToyModel(const Communicator& communicator, const ReducerOptions& options = {})
      : reducer(std::make_shared<Reducer>(
            std::vector<NamedParameter>{{.name = "a", .tensor = a}, {.name = "b", .tensor = b}},
            communicator.duplicate("toy"), options)),
        inner(std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{a, b}, 1.0)),
        optimizer(inner, reducer) {}

  /// Runs a pass as Accelerator::backward() does.
  void pass(const ToyPass& what) {
    reducer->set_loss_scale(what.loss_scale);
    at::Tensor loss = at::zeros({}).requires_grad_() * 0;
    if (what.explodes) loss = Explosive::apply(loss);
    if (what.a) loss = loss + a.sum() * *what.a;
    if (what.b) loss = loss + b.sum() * *what.b;
    (loss * what.loss_scale).backward();
    reducer->add_scope_weight();
  }
  AccumulateScope accumulate(double weight, bool syncs) {
    return AccumulateScope({{.reducer = reducer, .step = {.weight = weight, .syncs = syncs}}});
  }
  static void expect_gradient(const at::Tensor& parameter, float value) {
    ASSERT_TRUE(parameter.grad().defined());
    EXPECT_TRUE(at::equal(parameter.grad(), at::full({3}, value))) << parameter.grad();
  }

  at::Tensor a = at::zeros({3}).requires_grad_();
  at::Tensor b = at::zeros({3}).requires_grad_();
  std::shared_ptr<Reducer> reducer;
  std::shared_ptr<torch::optim::SGD> inner;
  Optimizer optimizer;
};

}  // namespace tutti::test
