// Ranks: 1, and 2 as threads. Prints rates; expects nothing of them.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdio>

#include "../../examples/gpt/model.h"
#include "device/side_stream.h"
#include "gpu/training.h"

namespace tutti::test::speed_test {
namespace {

using gpu::device;
using std::chrono::steady_clock;

/// Seconds of one call of `work`: the mean of `calls`, after a first call. Waits for the device before and after.
double seconds_of(int calls, const std::function<void()>& work) {
  work();
  gpu::wait_for_device();
  const auto start = steady_clock::now();
  for (int i = 0; i < calls; ++i) work();
  gpu::wait_for_device();
  return std::chrono::duration<double>(steady_clock::now() - start).count() / calls;
}

void print_rate(const char* work, std::int64_t bytes, double seconds) {
  std::printf("rate: %s of %lld MiB: %.2f GB/s\n", work, static_cast<long long>(bytes >> 20),
              static_cast<double>(bytes) / seconds / 1e9);
}

std::vector<std::int64_t> sizes_in_mib() {
  return gpu::is_simulated() ? std::vector<std::int64_t>{1, 4} : std::vector<std::int64_t>{25, 500};
}

TEST(Rates, OfCopiesBetweenDeviceAndPinnedMemory) {
  for (const std::int64_t mib : sizes_in_mib()) {
    const std::int64_t bytes = mib << 20;
    const at::Tensor on_device = at::ones({bytes / 4}, at::TensorOptions(at::kFloat).device(device()));
    const at::Tensor also_on_device = at::ones_like(on_device);
    const at::Tensor on_host = at::ones({bytes / 4}, at::kFloat).pin_memory();
    const at::Tensor also_on_host = at::ones({bytes / 4}, at::kFloat).pin_memory();
    const auto to_host = [&] { on_host.copy_(on_device, /*non_blocking=*/true); };
    const auto to_device = [&] { also_on_device.copy_(also_on_host, /*non_blocking=*/true); };
    const devices::SideStream side(device());
    print_rate("device to host", bytes, seconds_of(10, to_host));
    print_rate("host to device", bytes, seconds_of(10, to_device));
    print_rate("both at a time, each", bytes, seconds_of(10, [&] {
                 side.run(to_host);
                 to_device();
               }));
  }
}

TEST(Rates, OfStagedSumsOfTwoRanks) {
  for (const std::int64_t mib : sizes_in_mib()) {
    const auto measure = [&](const Communicator& communicator) {
      const c10::DeviceGuard guard(device());
      const std::int64_t bytes = mib << 20;
      const at::Tensor values = at::ones({bytes / 4}, at::TensorOptions(at::kFloat).device(device()));
      const double seconds = seconds_of(5, [&] { communicator.all_reduce(values).wait(); });
      if (communicator.rank() == 0) print_rate("staged all-reduce on 2 ranks", bytes, seconds);
    };
    run_thread_ranks(2, measure, {.backend = "staged", .timeout = std::chrono::seconds(60)});
  }
}

// The model, batch and precision of tools/gpu/gpt_peer.py.
void print_gpt_rate(const char* optimizer_name, bool fused) {
  const gpt::GptOptions size =
      gpu::is_simulated()
          ? gpt::GptOptions{.width = 32, .layers = 1, .heads = 2, .context = 16}
          : gpt::GptOptions{
                .vocabulary = 50304, .width = 768, .layers = 12, .heads = 12, .context = 1024, .feed_forward = 3072};
  constexpr std::int64_t batch_size = 8;
  const int steps = gpu::is_simulated() ? 2 : 30;
  torch::manual_seed(1);
  Accelerator accelerator(
      {.mixed_precision = Precision::bf16, .fused_optimizers = fused, .communicator = Communicator()});
  gpt::Gpt net(size);
  net->to(device());
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 3e-4));
  const at::Tensor tokens =
      at::randint(size.vocabulary, {batch_size, size.context + 1}, at::TensorOptions(at::kLong)).to(device());
  const at::Tensor inputs = tokens.narrow(1, 0, size.context), targets = tokens.narrow(1, 1, size.context);
  const auto step = [&, &model = model, &optimizer = optimizer] {
    accelerator.backward(accelerator.autocast([&] { return gpt::gpt_loss(model, inputs, targets); }));
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int i = 0; i < 4; ++i) step();
  const double seconds = seconds_of(steps, step);
  std::printf("speed: tutti, %s AdamW: %.2f ms a step, %.0f tokens/s\n", optimizer_name, seconds * 1e3,
              static_cast<double>(batch_size * size.context) / seconds);
}

TEST(Speed, OfAGptWithTheStepOfLibTorch) {
  print_gpt_rate("LibTorch's", false);
}

TEST(Speed, OfAGptWithFusedSteps) {
  print_gpt_rate("fused", true);
}

}  // namespace
}  // namespace tutti::test::speed_test
