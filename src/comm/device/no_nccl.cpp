// In place of nccl.cpp where tutti is built without CUDA.
#include <ATen/Context.h>

#include "comm/device/nccl.h"
#include "tutti/core/error.h"

namespace tutti::comm {

std::string why_no_nccl(int) {
  const std::string why = "tutti was compiled without NCCL";
  return at::hasCUDA() ? why : why + ", and there is no CUDA device";
}

DeviceBackend nccl_backend(const c10::intrusive_ptr<c10d::Store>&) {
  throw UsageError(why_no_nccl(0));
}

}  // namespace tutti::comm
