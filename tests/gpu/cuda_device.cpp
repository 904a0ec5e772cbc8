// Used in a build with CUDA. The only file of the program that includes CUDA's headers.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "gpu/device.h"
#include "tutti/core/error.h"

namespace tutti::test::gpu {

c10::Device device() {
  static const bool available = c10::cuda::device_count() > 0;
  if (!available) throw UsageError("there is no CUDA device");
  return {c10::kCUDA, 0};
}

bool is_simulated() {
  return false;
}

void wait_for_device() {
  c10::cuda::device_synchronize();
}

void keep_device_busy() {
  const at::NoGradGuard no_grad;
  constexpr int products = 100;  // of 137 GFLOP each
  const at::Tensor factor = at::empty({4096, 4096}, at::TensorOptions(at::kFloat).device(device()));
  at::Tensor product = factor;
  for (int i = 0; i < products; ++i) product = at::mm(product, factor);
}

void expect_no_host_waits(const std::function<void()>& work) {
  auto& state = c10::cuda::warning_state();
  const auto before = state.get_sync_debug_mode();
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  try {
    work();
  } catch (const c10::Error& error) {
    ADD_FAILURE() << "the host waited for the device: " << error.what();
  }
  state.set_sync_debug_mode(before);
}

}  // namespace tutti::test::gpu
