// Optimizer steps in mixed precision, on 1 to 3 ranks.
#include <gtest/gtest.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <filesystem>

#include "support/rank_case.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::mixed_precision_steps_test {
namespace {

TEST(MixedPrecisionSteps, AScopeOfAutocastAroundStepsUsesTheNewParameters) {
  Accelerator accelerator({.mixed_precision = Precision::bf16, .communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
  const Batch batch = batch_of(0);
  const auto scope = accelerator.autocast();
  const at::Tensor before = net->forward(batch.input);
  accelerator.backward(loss_of(before, batch.target));
  optimizer.step();
  EXPECT_FALSE(at::equal(net->forward(batch.input), before));
}

// Each evaluation of a search has other parameters.
TEST(MixedPrecisionSteps, ASearchInAScopeOfAutocastUsesTheNewParameters) {
  Accelerator accelerator({.mixed_precision = Precision::bf16, .communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] =
      accelerator.prepare(net, torch::optim::LBFGS(net->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(3)));
  const Batch batch = batch_of(0);
  const auto scope = accelerator.autocast();
  std::vector<at::Tensor> outputs;
  optimizer.step([&, &optimizer = optimizer] {
    optimizer.zero_grad();
    outputs.push_back(net->forward(batch.input));
    const at::Tensor loss = loss_of(outputs.back(), batch.target);
    accelerator.backward(loss);
    return loss;
  });
  ASSERT_GE(outputs.size(), 2U);
  EXPECT_FALSE(at::equal(outputs[1], outputs[0]));
}

// The first step overflows and lowers the scale. The last rank has no backward pass in the second one.
const RankCase scale_without_a_pass("scale_without_a_pass", [](const Communicator& communicator) {
  Accelerator accelerator({.mixed_precision = Precision::fp16, .communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (const double factor : {1e30, 1.0}) {
    const Batch batch = batch_of(communicator.rank());
    const bool has_pass = factor > 1 || communicator.size() == 1 || communicator.rank() + 1 < communicator.size();
    if (has_pass) {
      const auto scope = accelerator.no_sync(model);
      accelerator.backward(accelerator.autocast([&] { return loss_of(net->forward(batch.input), batch.target); }) *
                           factor);
    }
    EXPECT_NO_THROW(accelerator.synchronize(model));
    optimizer.step();
    EXPECT_EQ(accelerator.optimizer_step_was_skipped(), factor > 1);
    optimizer.zero_grad();
  }
});
TEST(MixedPrecisionSteps, ARankWithoutAPassHasTheScaleOfTheOthers) {
  scale_without_a_pass.on_threads({1, 2, 3});
}

/// Runs micro-batches [begin, end) of windows of two. Returns the norm of the last window's gradient.
double run(Accelerator& accelerator, Mlp& net, Optimizer& optimizer, int begin, int end) {
  double norm = 0;
  for (int i = begin; i < end; ++i) {
    const auto scope = accelerator.accumulate(net);
    const Batch batch = batch_of(i * accelerator.num_processes() + accelerator.process_index());
    accelerator.backward(accelerator.autocast([&] { return loss_of(net->forward(batch.input), batch.target); }));
    if (const auto limited = accelerator.clip_grad_norm_(net, 1e9)) norm = *limited;
    optimizer.step();
    optimizer.zero_grad();
  }
  return norm;
}

// Saved between two windows, and inside one.
const RankCase resumes_without_fp16("resumes_without_fp16", [](const Communicator& communicator) {
  for (const int saved_after : {2, 3}) {
    const TemporaryFolder scratch;
    const std::filesystem::path folder = communicator.broadcast_object((scratch.path() / "saved").string());
    double expected = 0;
    for (const Precision precision : {Precision::fp16, Precision::bf16, Precision::no}) {
      Accelerator accelerator(
          {.gradient_accumulation_steps = 2, .mixed_precision = precision, .communicator = communicator});
      Mlp net;
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      if (precision == Precision::fp16) {
        run(accelerator, net, optimizer, 0, saved_after);
        accelerator.save_state({.folder = folder});
        expected = run(accelerator, net, optimizer, saved_after, 4);
      } else {
        accelerator.load_state(folder);
        EXPECT_NEAR(run(accelerator, net, optimizer, saved_after, 4), expected, 0.05 * expected);
      }
    }
    communicator.barrier().wait();
  }
});
TEST(MixedPrecisionSteps, ACheckpointOfFp16ContinuesInOtherPrecisions) {
  resumes_without_fp16.on_threads({1, 2});
}

}  // namespace
}  // namespace tutti::test::mixed_precision_steps_test
