#pragma once
// A c10d backend of the program's own, for sums of tensors on devices.
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <string>

namespace c10d {
class Backend;
}

namespace tutti {

/// Creates c10d backends for the tensors of one device type, as c10d's NCCL and XCCL backends are.
struct C10dBackendFactory {
  std::string name;          ///< the first part of Communicator::backend_name(), "nccl"
  c10::DeviceType device{};  ///< of the tensors that the backends reduce
  /// Creates the backend of rank `rank` in a group of `size` ranks, for tensors on `on`. `group` is unique in the job.
  /// Every rank of the group calls it. The backend must support asynchronous allreduce() and abort().
  std::function<c10::intrusive_ptr<c10d::Backend>(const std::string& group, int rank, int size, c10::Device on)> make;
};

}  // namespace tutti
