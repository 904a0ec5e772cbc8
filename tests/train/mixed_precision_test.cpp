// autocast, the loss scale and clipping together, on 1 to 3 ranks.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/optim/clip_grad.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::mixed_precision_test {
namespace {

at::Tensor loss_of_batch(Mlp& model, const Batch& batch) {
  return loss_of(model->forward(batch.input), batch.target);
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

double norm_of(const std::vector<at::Tensor>& gradients) {
  double squares = 0;
  for (const at::Tensor& gradient : gradients) squares += std::pow(gradient.norm().item<double>(), 2);
  return std::sqrt(squares);
}

TEST(MixedPrecision, AutocastComputesInIt) {
  Accelerator accelerator({.mixed_precision = Precision::bf16, .communicator = Communicator()});
  Mlp net;
  accelerator.prepare(net);
  const Batch batch = batch_of(0);
  EXPECT_EQ(accelerator.autocast([&] { return net->forward(batch.input); }).scalar_type(), at::kBFloat16);
  {
    const auto scope = accelerator.autocast();
    EXPECT_EQ(net->forward(batch.input).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(net->forward(batch.input).scalar_type(), at::kFloat);
}

TEST(MixedPrecision, WithoutItAutocastChangesNothing) {
  Accelerator accelerator({.communicator = Communicator()});
  Mlp net;
  accelerator.prepare(net);
  const AutocastScope outer(Precision::bf16, c10::DeviceType::CPU);
  EXPECT_EQ(accelerator.autocast([&] { return net->forward(batch_of(0).input); }).scalar_type(), at::kBFloat16);
}

TEST(MixedPrecision, AForwardPassOutsideAutocastIsAnError) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    Accelerator accelerator({.mixed_precision = precision, .communicator = Communicator()});
    Mlp net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const Batch batch = batch_of(0);
    const at::Tensor loss = loss_of_batch(net, batch);
    EXPECT_NE(message_of([&] { accelerator.backward(loss); }).find("ran in full precision"), std::string::npos);
    // The loop can continue with a correct pass.
    accelerator.backward(accelerator.autocast([&] { return loss_of_batch(net, batch); }));
    optimizer.step();
    // A scope counts for one backward pass only.
    optimizer.zero_grad();
    const at::Tensor again = loss_of_batch(net, batch);
    EXPECT_NE(message_of([&] { accelerator.backward(again); }).find("ran in full precision"), std::string::npos);
  }
}

TEST(MixedPrecision, TwoLossesOfOneForwardPassAreNoError) {
  Accelerator accelerator({.mixed_precision = Precision::bf16, .communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const Batch batch = batch_of(0);
  const at::Tensor output = accelerator.autocast([&] { return net->forward(batch.input); });
  accelerator.backward(output.sum() * 1);
  const at::Tensor second = accelerator.autocast([&] { return net->forward(batch.input); });
  second.sum().backward({}, true);
  EXPECT_NO_THROW(second.mean().backward());
}

TEST(MixedPrecision, TwoLossesOfAModelInTheLowerPrecisionAreNoError) {
  Accelerator accelerator({.mixed_precision = Precision::bf16, .communicator = Communicator()});
  Mlp net;
  net->to(at::kBFloat16);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const at::Tensor input = batch_of(0).input.to(at::kBFloat16);
  const at::Tensor output = accelerator.autocast([&] { return net->forward(input); });
  accelerator.backward(output.sum(), /*retain_graph=*/true);
  EXPECT_NO_THROW(accelerator.backward(output.mean()));
}

TEST(MixedPrecision, ASecondLossThatNeedsNoCastIsNoError) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    Accelerator accelerator({.mixed_precision = precision, .communicator = Communicator()});
    Mlp net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    at::Tensor loss, penalty;
    {
      const auto scope = accelerator.autocast();
      loss = loss_of_batch(net, batch_of(0));
      penalty = net->first->weight.pow(2).sum() + net->second->bias.abs().sum();
    }
    accelerator.backward(loss);
    EXPECT_NO_THROW(accelerator.backward(penalty));
    EXPECT_NO_THROW(optimizer.step());
    optimizer.zero_grad();
  }
}

// Each of these is computed in the lower precision under autocast, on the CPU and on accelerators.
TEST(MixedPrecision, ProductsInFullPrecisionAreAnError) {
  Accelerator accelerator({.mixed_precision = Precision::bf16, .communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const at::Tensor weight = net->first->weight;  // 6 inputs
  const std::int64_t outputs = weight.size(0);
  const at::Tensor x = random_tensor({2, 4, 6}, 5);
  const auto image = [&] { return weight.reshape({1, 1, outputs, 6}); };
  const at::Tensor kernel = at::ones({1, 1, 2, 2});
  const std::vector<std::pair<const char*, std::function<at::Tensor()>>> products{
      {"linear", [&] { return at::linear(x, weight); }},
      {"addmm", [&] { return at::addmm(at::ones({1}), x[0], weight.t()); }},
      {"mm", [&] { return at::mm(x[0], weight.t()); }},
      {"matmul", [&] { return at::matmul(x, weight.t()); }},
      {"bmm",
       [&] {
         return at::bmm(x, weight.t().expand({2, 6, outputs}));
       }},
      {"baddbmm",
       [&] {
         return at::baddbmm(at::ones({1}), x, weight.t().expand({2, 6, outputs}));
       }},
      {"addbmm",
       [&] {
         return at::addbmm(at::ones({1}), x, weight.t().expand({2, 6, outputs}));
       }},
      {"einsum",
       [&] {
         return at::einsum("bif,of->bio", {x, weight});
       }},
      {"conv2d", [&] { return at::conv2d(image(), kernel); }},
      {"conv_transpose2d", [&] { return at::conv_transpose2d(image(), kernel); }},
      {"prelu", [&] { return at::prelu(weight, at::ones({1})); }},
      {"attention", [&] { return at::scaled_dot_product_attention(image(), image(), image()); }}};
  for (const auto& [name, product] : products) {
    const at::Tensor plain = product().sum();
    EXPECT_NE(message_of([&] { accelerator.backward(plain); }).find("ran in full precision"), std::string::npos)
        << name;
    at::Tensor first, second;
    {
      const auto scope = accelerator.autocast();
      first = product().sum();
      second = product().sum();
    }
    accelerator.backward(first);
    EXPECT_NO_THROW(accelerator.backward(second)) << name;
    optimizer.step();
    optimizer.zero_grad();
  }
}

TEST(MixedPrecision, PlainBackwardUnderTheScalerIsAnError) {
  Accelerator accelerator({.mixed_precision = Precision::fp16, .communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const at::Tensor loss = accelerator.autocast([&] { return loss_of_batch(net, batch_of(0)); });
  EXPECT_NE(message_of([&] { loss.backward(); }).find("Use accelerator.backward"), std::string::npos);
  // bf16 needs no loss scale, so backward without one is correct.
  Accelerator other({.mixed_precision = Precision::bf16, .communicator = Communicator()});
  Mlp second;
  auto [prepared, sgd] = other.prepare(second, torch::optim::SGD(second->parameters(), 0.1));
  EXPECT_NO_THROW(other.autocast([&] { return loss_of_batch(second, batch_of(0)); }).backward());
}

// The gradients of a loop are those of the unscaled loss, under every policy and for any number of synchronizations of
// the window.
void check_unscaled(const Communicator& communicator, bool sync_each_batch, double scale) {
  Accelerator accelerator(
      {.gradient_accumulation_plugin = GradientAccumulationPlugin{.num_steps = 3, .sync_each_batch = sync_each_batch},
       .mixed_precision = Precision::fp16,
       .grad_scaler = {.init_scale = scale},
       .communicator = communicator});
  Mlp reference, net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const int total = 3 * communicator.size();
  for (int pass = 0; pass < 3; ++pass) {
    const auto window = accelerator.accumulate(model);
    const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
    accelerator.backward(accelerator.autocast([&] { return loss_of_batch(net, batch); }));
    if (!accelerator.sync_gradients()) continue;
    for (int i = 0; i < total; ++i) {
      const AutocastScope scope(Precision::fp16, c10::DeviceType::CPU);
      (loss_of_batch(reference, batch_of(i)) / total).backward();
    }
    EXPECT_TRUE(close(gradients_of(*net), gradients_of(*reference), 2e-3));
    EXPECT_EQ(accelerator.stats().syncs, sync_each_batch ? 3 : 1);
    optimizer.step();
    EXPECT_FALSE(optimizer.step_was_skipped());
    optimizer.zero_grad();
  }
}
const RankCase unscales("unscales", [](const Communicator& communicator) {
  for (const double scale : {16.0, 1024.0}) {
    check_unscaled(communicator, false, scale);
    check_unscaled(communicator, true, scale);
  }
});
TEST(MixedPrecision, GradientsAreThoseOfTheUnscaledLoss) {
  unscales.everywhere();
}

// The data of one rank overflow. Every rank skips the step, halves the scale, and keeps the position of its schedule.
const RankCase overflow_on_one_rank("overflow_on_one_rank", [](const Communicator& communicator) {
  Accelerator accelerator(
      {.mixed_precision = Precision::fp16, .grad_scaler = {.init_scale = 1024}, .communicator = communicator});
  Mlp net;
  const LrSchedule halves = [](std::int64_t position) { return std::pow(0.5, static_cast<double>(position)); };
  auto [model, optimizer, scheduler] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), halves);
  const auto step = [&](bool overflows) {
    const Batch batch = batch_of(communicator.rank());
    const bool mine = overflows && communicator.rank() == communicator.size() - 1;
    accelerator.backward(accelerator.autocast([&] { return loss_of_batch(net, batch) * (mine ? 1e30 : 1.0); }));
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  };
  step(false);
  EXPECT_FALSE(optimizer.step_was_skipped());
  const at::Tensor before = net->first->weight.detach().clone();
  const auto position = scheduler.position();
  step(true);
  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
  EXPECT_TRUE(net->first->weight.equal(before));
  EXPECT_EQ(accelerator.loss_scale(), 512);
  EXPECT_EQ(scheduler.position(), position);
  step(false);
  EXPECT_FALSE(optimizer.step_was_skipped());
  EXPECT_FALSE(net->first->weight.equal(before));
  EXPECT_EQ(scheduler.position(), position + 1);
});
TEST(MixedPrecision, AnOverflowOnOneRankSkipsTheStepOnAll) {
  overflow_on_one_rank.everywhere();
}

// test_optimizer.py: a NaN gradient.
TEST(MixedPrecision, ANanGradientSkipsTheStep) {
  Accelerator accelerator({.mixed_precision = Precision::fp16, .communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  accelerator.backward(accelerator.autocast([&] { return loss_of_batch(net, batch_of(0)) * nan; }));
  optimizer.step();
  EXPECT_TRUE(optimizer.step_was_skipped());
}

TEST(MixedPrecision, WarnsOnceWhereEveryStepIsSkipped) {
  testing::internal::CaptureStderr();
  run_thread_ranks(2, [](const Communicator& communicator) {
    Accelerator accelerator(
        {.mixed_precision = Precision::fp16, .grad_scaler = {.init_scale = 4}, .communicator = communicator});
    Mlp net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (int i = 0; i < 6; ++i) {
      accelerator.backward(accelerator.autocast([&] { return loss_of_batch(net, batch_of(0)) * nan; }));
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  const std::string text = testing::internal::GetCapturedStderr();
  const std::string warning = "until the loss scale fell below 1";
  EXPECT_EQ(text.find(warning), text.rfind(warning)) << text;
  EXPECT_NE(text.find(warning), std::string::npos) << text;
}

// The scale changes in the middle of another optimizer's window. The pending gradients of that window are rescaled.
TEST(MixedPrecision, AWindowSurvivesAChangeOfTheScale) {
  Accelerator accelerator({.mixed_precision = Precision::fp16,
                           .grad_scaler = {.init_scale = 256, .growth_interval = 1},
                           .sync_policy = SyncPolicy::manual,
                           .communicator = Communicator()});
  Mlp first(1), second(2), reference(2);
  auto [a, optimizer_a, b, optimizer_b] = accelerator.prepare(first, torch::optim::SGD(first->parameters(), 0.1),
                                                              second, torch::optim::SGD(second->parameters(), 0.1));
  const auto pass = [&](Mlp& model, int index) {
    accelerator.backward(accelerator.autocast([&] { return loss_of_batch(model, batch_of(index)); }));
  };
  {
    const auto quiet = accelerator.no_sync(b);
    pass(second, 0);
  }
  pass(first, 0);
  optimizer_a.step();
  EXPECT_EQ(accelerator.loss_scale(), 512);
  pass(second, 1);
  for (int i = 0; i < 2; ++i) {
    const AutocastScope scope(Precision::fp16, c10::DeviceType::CPU);
    loss_of_batch(reference, batch_of(i)).backward();
  }
  EXPECT_TRUE(close(gradients_of(*second), gradients_of(*reference), 2e-3));
}

// Seed 004, section 3: gradients of norm g, scaled by s, clipped to c and unscaled are c / s, not c.
// A rank whose scope runs no backward pass sends the same scale as the other ranks in the sync header.
const RankCase scope_without_backward("scope_without_backward", [](const Communicator& communicator) {
  Accelerator accelerator({.mixed_precision = Precision::fp16, .communicator = communicator});
  Mlp net, reference;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  loss_of_batch(reference, batch_of(0)).backward();
  {
    const auto window = accelerator.accumulate(model);
    if (communicator.rank() == 0) {
      accelerator.backward(accelerator.autocast([&] { return loss_of_batch(model, batch_of(0)); }));
    }
    optimizer.step();
    EXPECT_TRUE(close(gradients_of(*net), gradients_of(*reference), 0.02));
  }
});
TEST(MixedPrecision, AScopeWithoutABackwardPassFollowsTheScale) {
  scope_without_backward.everywhere();
}

const RankCase clipping_of_scaled_gradients("clipping_of_scaled_gradients", [](const Communicator& communicator) {
  constexpr double scale = 1024;
  constexpr double limit = 0.01;
  const Batch batch = batch_of(0);

  // By hand and in the wrong order, as the document warns: clip first, then unscale.
  Mlp by_hand;
  {
    const AutocastScope scope(Precision::fp16, c10::DeviceType::CPU);
    (loss_of_batch(by_hand, batch) * scale).backward();
  }
  clip_grad_norm(by_hand->parameters(), limit);
  auto wrong = gradients_of(*by_hand);
  for (at::Tensor& gradient : wrong) gradient.div_(scale);

  Accelerator accelerator(
      {.mixed_precision = Precision::fp16, .grad_scaler = {.init_scale = scale}, .communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  accelerator.backward(accelerator.autocast([&] { return loss_of_batch(net, batch); }));
  const double before = *accelerator.clip_grad_norm_(model, limit);
  const double right = norm_of(gradients_of(*net));

  if (communicator.rank() == 0) {
    std::cout << "norm before " << before << ", clipped to " << limit << ": " << right << " by the Accelerator, "
              << norm_of(wrong) << " where scaled gradients are clipped" << std::endl;
  }
  EXPECT_GT(before, limit);
  EXPECT_LT(before, scale * limit);  // an unscaled norm
  EXPECT_NEAR(right, limit, 1e-6);
  EXPECT_NEAR(norm_of(wrong), limit / scale, 1e-8);
});
TEST(MixedPrecision, ClippingSeesUnscaledGradients) {
  clipping_of_scaled_gradients.on_threads({1, 2});
  clipping_of_scaled_gradients.on_processes({2});
}

TEST(MixedPrecision, ClippingByValueActsAtTheWindowsEnd) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (int pass = 0; pass < 2; ++pass) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(loss_of_batch(net, batch_of(pass)));
    EXPECT_EQ(accelerator.clip_grad_value_(model, 1e-3), pass == 1);
  }
  for (const at::Tensor& gradient : gradients_of(*net)) EXPECT_LE(gradient.abs().max().item<double>(), 1.001e-3);
}

}  // namespace
}  // namespace tutti::test::mixed_precision_test
