#pragma once
// PyTorch's Gloo group, for the systems other than tutti. Needs Gloo's headers, which the library does not.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string>

#include "tutti/comm/communicator.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// False if the build found no Gloo headers.
bool has_gloo_headers();

/// Returns the message for a build without them.
inline std::string no_gloo_headers() {
  return "the build found no headers of Gloo (tools/packages.sh libgloo-dev, then build again)";
}

/// Creates a group of the ranks of `communicator`, with its own connections and store. Every rank must call it. Throws
/// UsageError if the build found no Gloo headers.
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const Communicator& communicator,
                                                       const Environment& environment);

}  // namespace tutti::bench
