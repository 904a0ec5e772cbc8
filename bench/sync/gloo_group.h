#pragma once
// PyTorch's Gloo group, for the systems other than tutti.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tutti/comm/communicator.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Creates a group of the ranks of `communicator`, with its own connections and store. Every rank must call it.
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const Communicator& communicator,
                                                       const Environment& environment);

}  // namespace tutti::bench
