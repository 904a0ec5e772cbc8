// The cases in which a step is not fused, and that such a call changes nothing.
#include <gtest/gtest.h>
#include <torch/optim/rmsprop.h>

#include "optim/fused_cases.h"
#include "optim/fused_step.h"
#include "optim/one_rank.h"

namespace tutti::test::fused_refusal_test {
namespace {

/// After `spoil`, fused_step() must return a reason that contains `word`, and change nothing.
void expect_refused(optim::Optimizer& optimizer, const Tensors& parameters, const std::function<void()>& spoil,
                    const std::string& word) {
  spoil();
  Tensors before;
  for (const at::Tensor& parameter : parameters) before.push_back(parameter.detach().clone());
  const std::size_t states = optimizer.state().size();
  const auto refusal = fused_step(optimizer);
  ASSERT_TRUE(refusal) << word;
  EXPECT_NE(refusal->find(word), std::string::npos) << *refusal;
  for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(at::equal(parameters[i], before[i])) << word;
  EXPECT_EQ(optimizer.state().size(), states) << word;
}

TEST(FusedStepRefusal, OtherClassesAreNotFused) {
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

TEST(FusedStepRefusal, TensorsThatTheKernelsDoNotSupport) {
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
    refused([](Tensors&) {}, "not float, double or bfloat16", at::kHalf);
    // A late parameter, so that a wrong implementation would have changed earlier ones.
    refused([](Tensors& all) { all[6].mutable_grad() = all[6].grad().contiguous(); }, "parameter 3 of group 1");
    refused([](Tensors& all) { all[0].mutable_grad() = random({17, 33}, 1).t(); }, "its gradient has another");
    refused([](Tensors& all) { all[5].mutable_grad() = at::ones({257}).to_sparse(); }, "its gradient has another");
    refused([](Tensors& all) { all[7].set_data(random({70000, 2}, 1).select(1, 0)); }, "gaps or overlaps");
  }
}

// The memory holds the negated values, as that of the imaginary part of a conj().
TEST(FusedStepRefusal, LazyNegations) {
  const auto negated = [] { return at::_neg_view(random({3}, 1)); };
  const at::Tensor weight = random({3}, 3).requires_grad_();
  weight.mutable_grad() = negated();
  ASSERT_TRUE(weight.grad().is_neg());
  optim::SGD optimizer({weight}, SGDOptions(0.1));
  expect_refused(
      optimizer, {weight}, [] {}, "its gradient has another");
  const at::Tensor lazy = negated().requires_grad_();
  lazy.mutable_grad() = at::ones({3});
  optim::SGD of_lazy({lazy}, SGDOptions(0.1));
  expect_refused(
      of_lazy, {lazy}, [] {}, "negated values");
}

TEST(FusedStepRefusal, AStateThatTheKernelsDoNotSupport) {
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

// A state of another optimizer must not be overwritten.
TEST(FusedStepRefusal, AStateOfAnotherOptimizer) {
  const at::Tensor weight = at::ones({3}).requires_grad_();
  weight.mutable_grad() = at::ones({3});
  optim::SGD optimizer({weight}, SGDOptions(0.1).momentum(0.9));
  optimizer.state()[weight.unsafeGetTensorImpl()] = std::make_unique<optim::AdamParamState>();
  expect_refused(
      optimizer, {weight}, [] {}, "of another kind");
}

TEST(FusedStepRefusal, AnOptimizerWithoutGradientsIsNotRefused) {
  const at::Tensor weight = at::ones({3}).requires_grad_();
  optim::AdamW optimizer({weight}, AdamWOptions(0.1));
  EXPECT_EQ(fused_step(optimizer), std::nullopt);
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(PreparedOptimizer, FusesByDefault) {
  for (const bool fused : {true, false}) {
    const OneRank rank;
    Optimizer optimizer(std::make_shared<optim::AdamW>(Tensors{rank.weight}, AdamWOptions(0.1)), rank.reducer,
                        {.fused = fused});
    rank.backward();
    optimizer.step();
    EXPECT_EQ(optimizer.not_fused_reason().empty(), fused) << optimizer.not_fused_reason();
    EXPECT_NEAR(rank.weight[0].item<float>(), -0.1, 1e-6);
  }
}

TEST(PreparedOptimizer, ReportsWhyItDoesNotFuse) {
  const OneRank rank;
  Optimizer optimizer = rank.with(std::make_shared<optim::RMSprop>(Tensors{rank.weight}, optim::RMSpropOptions(0.1)));
  rank.backward();
  optimizer.step();
  EXPECT_NE(optimizer.not_fused_reason().find("no fused kernel"), std::string::npos);
  EXPECT_NE(rank.weight[0].item<float>(), 0);
}

}  // namespace
}  // namespace tutti::test::fused_refusal_test
