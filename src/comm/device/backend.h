#pragma once
// A backend whose gradient sums may lie on a device: they go through one of c10d's backends (NCCL), everything else
// through a backend of the host.
//
// A sum is queued where its gradients were: the backend waits for the stream that computed them and sums on a stream of
// its own; the factor that comes with finish_reduce_scatter() is applied on a side stream behind it, and
// block_current_stream() lets the program's stream follow. The CPU waits for the other ranks' words of a round, never
// for the device. The words travel through the host's backend, so that a dead or late rank is found and named there;
// then the backend is aborted, which ends what waits on the device.
#include <ATen/core/TensorBody.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <string>

#include "comm/backend/backend.h"

namespace tutti::comm {

struct C10dBackendFactory {
  std::string name;         ///< "nccl"
  at::DeviceType device{};  ///< of the tensors that it sums
  /// A backend for a group of `size` ranks; `group` is unique in the job. Every rank of the group calls it.
  std::function<c10::intrusive_ptr<c10d::Backend>(const std::string& group, int rank, int size)> make;
};

/// `group` names the ranks of `host_backend`, uniquely in the job. The backend is made when memory is first allocated
/// for it.
std::shared_ptr<Backend> make_device_backend(std::shared_ptr<Backend> host_backend, C10dBackendFactory factory,
                                             std::string group);

}  // namespace tutti::comm
