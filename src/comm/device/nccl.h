#pragma once
// NCCL, if tutti was built for CUDA (the CMake option TUTTI_CUDA).
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

#include "comm/device/backend.h"

namespace tutti::comm {

/// The reason why the rank with this local rank cannot use NCCL; empty if it can. NCCL needs a device for every rank.
std::string nccl_unavailable_reason(int local_rank);

/// The factory of c10d's NCCL backend, which exchanges addresses through `store`. Throws UsageError if tutti was built
/// without NCCL.
C10dBackendFactory nccl_backend_factory(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace tutti::comm
