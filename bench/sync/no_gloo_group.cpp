// Replaces gloo_group.cpp in a build without Gloo's headers.
#include "sync/gloo_group.h"
#include "tutti/core/error.h"

namespace tutti::bench {

bool has_gloo_headers() {
  return false;
}

c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const Communicator&, const Environment&) {
  throw UsageError("this benchmark compares with c10d over Gloo, and " + no_gloo_headers());
}

}  // namespace tutti::bench
