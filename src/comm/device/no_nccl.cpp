// Replaces nccl.cpp if tutti is built without CUDA.
#include <ATen/Context.h>

#include "comm/device/nccl.h"
#include "tutti/core/error.h"

namespace tutti::comm {

std::string nccl_unavailable_reason() {
  const std::string why = "tutti was compiled without NCCL";
  return at::hasCUDA() ? why : why + ", and there is no CUDA device";
}

std::string cuda_device_uuid(c10::DeviceIndex) {
  throw UsageError(nccl_unavailable_reason());
}

C10dBackendFactory nccl_backend_factory(const c10::intrusive_ptr<c10d::Store>&) {
  throw UsageError(nccl_unavailable_reason());
}

}  // namespace tutti::comm
