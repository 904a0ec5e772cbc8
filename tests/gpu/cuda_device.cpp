// Used in a build with CUDA. The only file of the program that includes headers of CUDA and NCCL.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>

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

std::optional<C10dBackendFactory> nccl_on_one_device(const std::string& path) {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/1);  // as the backend nccl does
  return C10dBackendFactory{.name = "nccl on one device",
                            .device = c10::kCUDA,
                            .make = [path](const std::string& group, int rank, int size, c10::Device) {
                              const auto store = c10::make_intrusive<c10d::FileStore>(path, size);
                              return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<c10d::ProcessGroupNCCL>(
                                  c10::make_intrusive<c10d::PrefixStore>(group, store), rank, size,
                                  c10d::ProcessGroupNCCL::Options::create()));
                            }};
}

}  // namespace tutti::test::gpu
