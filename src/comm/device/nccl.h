#pragma once
// NCCL, if tutti was built for CUDA (the CMake option TUTTI_CUDA).
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

#include "tutti/comm/c10d_backend_factory.h"

namespace tutti::comm {

/// The type of devices that NCCL and c10d's Gloo serve.
inline constexpr c10::DeviceType nccl_device_type = c10::DeviceType::CUDA;

/// The reason why this process cannot use NCCL; empty if it can.
std::string nccl_unavailable_reason();

/// Identifies a CUDA device on its machine, whatever number a process gives it. Throws UsageError if tutti was built
/// without NCCL.
std::string cuda_device_uuid(c10::DeviceIndex device);

/// The factory of c10d's NCCL backend, which exchanges addresses through `store`. Throws UsageError if tutti was built
/// without NCCL.
C10dBackendFactory nccl_backend_factory(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace tutti::comm
