// The only file that includes headers of CUDA and NCCL.
#include "comm/device/nccl.h"

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>

#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr int do_not_overwrite = 0;  // keeps the user's setting

// The host's backend detects and names a rank that exits, and then aborts the c10d backend. By default, a thread of
// c10d would end this process as soon as NCCL reports the closed connection.
void disable_nccl_error_handling() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", do_not_overwrite);
}

}  // namespace

std::string nccl_unavailable_reason(int local_rank) {
  const int devices = c10::cuda::device_count();
  if (devices == 0) return "there is no CUDA device";
  if (local_rank < devices) return "";
  return "this is rank " + std::to_string(local_rank) + " of its node, which has " + std::to_string(devices) +
         (devices == 1 ? " CUDA device" : " CUDA devices") + ": start no more ranks on a node than it has devices";
}

C10dBackendFactory nccl_backend_factory(const c10::intrusive_ptr<c10d::Store>& store) {
  return {.name = "nccl", .device = at::kCUDA, .make = [store](const std::string& group, int rank, int size, c10::Device) {
            disable_nccl_error_handling();
            return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<c10d::ProcessGroupNCCL>(
                c10::make_intrusive<c10d::PrefixStore>("nccl/" + group, store), rank, size,
                c10d::ProcessGroupNCCL::Options::create()));
          }};
}

}  // namespace tutti::comm
