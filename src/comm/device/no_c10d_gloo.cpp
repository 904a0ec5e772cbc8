// In a build without Gloo's headers.
#include "comm/device/c10d_gloo.h"
#include "tutti/core/error.h"

namespace tutti::comm {

std::string c10d_gloo_unavailable_reason() {
  return "tutti was built without Gloo's headers (libgloo-dev)";
}

C10dBackendFactory c10d_gloo_factory(c10::intrusive_ptr<c10d::Store>, const std::string&, std::chrono::milliseconds) {
  throw UsageError(c10d_gloo_unavailable_reason());
}

}  // namespace tutti::comm
