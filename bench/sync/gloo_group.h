#pragma once
// PyTorch's Gloo group, for the systems that tutti is compared with.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tutti/comm/communicator.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// The ranks of `communicator` as a group with connections and a store of its own. Every rank must call it.
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const Communicator& communicator,
                                                       const Environment& environment);

}  // namespace tutti::bench
