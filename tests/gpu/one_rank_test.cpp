// Ranks: 1.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "gpu/training.h"
#include "support/temporary_folder.h"
#ifdef HAS_EXPORTED
#include "tutti/exported/exported_module.h"
#endif

namespace tutti::test::one_rank_test {
namespace {

using gpu::device;

AcceleratorOptions alone(Precision precision = Precision::no) {
  return {
      .gradient_accumulation_steps = gpu::micro_batches, .mixed_precision = precision, .communicator = Communicator()};
}

std::vector<at::Tensor> train(at::Device on, Precision precision) {
  Accelerator accelerator(alone(precision));
  return gpu::train_mlp(accelerator, on);
}

TEST(OneRank, TrainsAsOnTheCpu) {
  EXPECT_TRUE(close(train(device(), Precision::no), train(at::kCPU, Precision::no), gpu::tolerance));
}

TEST(OneRank, TrainsInBf16NearlyAsOnTheCpu) {
  EXPECT_TRUE(close(train(device(), Precision::bf16), train(at::kCPU, Precision::no), 0.05));
}

TEST(OneRank, SkipsAStepWhoseFp16GradientsOverflow) {
  AcceleratorOptions options = alone(Precision::fp16);
  options.gradient_accumulation_steps = 1;
  options.grad_scaler.init_scale = 1e8;
  Accelerator accelerator(options);
  Mlp net(3);
  net->to(device());
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  const auto before = gpu::values_of(*model);
  gpu::run_steps(accelerator, model, optimizer, {.last = 1, .batch_at = gpu::batches_on(device()), .after_step = [&] {
                                                   EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
                                                 }});
  EXPECT_TRUE(close(gpu::values_of(*model), before, 0));
  EXPECT_EQ(accelerator.loss_scale(), 0.5e8);
  gpu::run_steps(accelerator, model, optimizer, {.first = 1, .last = 30, .batch_at = gpu::batches_on(device())});
  EXPECT_FALSE(accelerator.optimizer_step_was_skipped());
  EXPECT_FALSE(close(gpu::values_of(*model), before, 0.01));
}

TEST(HiddenWaits, NoneInTheStepsOfOneRank) {
  Accelerator accelerator(alone());
  Mlp net(3);
  net->to(device());
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  std::vector<Batch> batches;
  for (std::int64_t i = 0; i < 8; ++i) batches.push_back(gpu::batches_on(device())(i));
  gpu::Steps steps{.last = 3, .batch_at = [&](std::int64_t index) { return batches.at(index % batches.size()); }};
  gpu::run_steps(accelerator, model, optimizer, steps);
  gpu::wait_for_device();
  steps.first = 3, steps.last = 10;
  gpu::expect_no_host_waits(
      [&, &model = model, &optimizer = optimizer] { gpu::run_steps(accelerator, model, optimizer, steps); });
}

/// Trains the steps `first` .. `last` - 1 on `on`: after the checkpoint `from`, and before the checkpoint `to`, unless
/// they are empty.
std::vector<at::Tensor> train_part(at::Device on, int first, int last, const std::filesystem::path& from,
                                   const std::filesystem::path& to) {
  Accelerator accelerator(alone());
  Mlp net(3);
  net->to(on);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  if (!from.empty()) accelerator.load_state(from);
  gpu::run_steps(accelerator, model, optimizer, {.first = first, .last = last, .batch_at = gpu::batches_on(on)});
  if (!to.empty()) accelerator.save_state({.folder = to});
  return gpu::values_of(*model);
}

TEST(Checkpoint, OfTheDeviceContinuesOnTheCpuAndBack) {
  const TemporaryFolder folder;
  const auto first = folder.path() / "first", second = folder.path() / "second";
  train_part(device(), 0, 2, {}, first);
  train_part(at::kCPU, 2, 4, first, second);
  const auto moved = train_part(device(), 4, 6, second, {});
  EXPECT_TRUE(close(moved, train_part(at::kCPU, 0, 6, {}, {}), gpu::tolerance));
}

TEST(Checkpoint, OfTheDeviceResumesToTheSameBits) {
  const TemporaryFolder folder;
  const auto saved = folder.path() / "saved";
  train_part(device(), 0, 2, {}, saved);
  const auto resumed = train_part(device(), 2, 4, saved, {});
  EXPECT_TRUE(close(resumed, train_part(device(), 0, 4, {}, {}), 0));
}

#ifdef HAS_EXPORTED
/// TUTTI_TEST_EXPORTED names a program of torch.export with inputs [n, 6] and outputs [n, 3].
TEST(Exported, TrainsAsOnTheCpu) {
  const char* file = std::getenv("TUTTI_TEST_EXPORTED");
  if (file == nullptr) GTEST_SKIP() << "set TUTTI_TEST_EXPORTED to the file of tools/gpu/export_model.py";
  const auto train_program = [&](at::Device on) {
    Accelerator accelerator(alone());
    const auto net = std::make_shared<ExportedModule>(file);
    net->to(on);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
    gpu::run_steps(accelerator, model, optimizer, {.batch_at = gpu::batches_on(on)});
    return gpu::values_of(*model);
  };
  EXPECT_TRUE(close(train_program(device()), train_program(at::kCPU), gpu::tolerance));
}
#endif

}  // namespace
}  // namespace tutti::test::one_rank_test
