#pragma once
// NCCL, where this tutti was built for CUDA (the option TUTTI_CUDA).
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

#include "comm/device/backend.h"

namespace tutti::comm {

/// Why the rank `local_rank` of its node cannot use NCCL; empty where it can. NCCL wants a device for every rank.
std::string nccl_unavailable_reason(int local_rank);

/// c10d's backend for NCCL, whose ranks meet in `store`. Throws UsageError where nccl_unavailable_reason() says why.
C10dBackendFactory nccl_backend_factory(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace tutti::comm
