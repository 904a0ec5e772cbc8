#pragma once
// A backend for the memory of devices. Collectives on it use a c10d backend (NCCL); all other operations use a backend
// of the host.
//
// A collective is queued on the device: the c10d backend waits for the stream that computed the tensor, and runs on a
// stream of its own. The factor of finish_reduce_scatter() is applied on a side stream after it, and
// block_current_stream() makes the program's stream wait for that. The CPU waits for the other ranks' call signatures,
// sync headers and trailers, never for the device. These are sent through the host's backend, which detects failed and
// late ranks and names them. Then the c10d backend is aborted, which ends the waits on the device. A watchdog detects
// devices that are late (watchdog.h).
//
// The order of collectives on one c10d backend must be equal on all ranks. So each communicator has its own, and its
// queue thread launches them all, in the order of its operations.
#include <ATen/core/TensorBody.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>

#include "comm/backend/backend.h"
#include "tutti/comm/c10d_backend_factory.h"

namespace tutti::comm {

/// `group` is the name of the group of `host_backend`, unique in the job. The c10d backend is created when device
/// memory is first allocated, or with the first collective on it.
std::shared_ptr<Backend> make_device_backend(const std::shared_ptr<Backend>& host_backend, C10dBackendFactory factory,
                                             std::string group);

}  // namespace tutti::comm
