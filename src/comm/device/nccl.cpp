// The only file that includes headers of CUDA and NCCL.
#include "comm/device/nccl.h"

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>
#include <iomanip>
#include <sstream>

// Declared here, because its header needs those of cuBLAS, cuSPARSE and cuSOLVER.
namespace at::cuda {
TORCH_CUDA_CPP_API cudaDeviceProp* getDeviceProperties(c10::DeviceIndex device);
}  // namespace at::cuda

namespace tutti::comm {
namespace {

constexpr int do_not_overwrite = 0;  // keeps the user's setting

// The host's backend detects and names a rank that exits, and then aborts the c10d backend. By default, a thread of
// c10d would end this process as soon as NCCL reports the closed connection.
void disable_nccl_error_handling() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", do_not_overwrite);
}

}  // namespace

std::string nccl_unavailable_reason() {
  return c10::cuda::device_count() == 0 ? "there is no CUDA device" : "";
}

std::string cuda_device_uuid(c10::DeviceIndex device) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device);
  std::ostringstream text;
  for (const char byte : properties.uuid.bytes) {
    text << std::hex << std::setw(2) << std::setfill('0') << static_cast<int>(static_cast<unsigned char>(byte));
  }
  return text.str();
}

C10dBackendFactory nccl_backend_factory(const c10::intrusive_ptr<c10d::Store>& store) {
  return {.name = "nccl",
          .device = nccl_device_type,
          .make = [store](const std::string& group, int rank, int size, c10::Device) {
            disable_nccl_error_handling();
            return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<c10d::ProcessGroupNCCL>(
                c10::make_intrusive<c10d::PrefixStore>("nccl/" + group, store), rank, size,
                c10d::ProcessGroupNCCL::Options::create()));
          }};
}

}  // namespace tutti::comm
