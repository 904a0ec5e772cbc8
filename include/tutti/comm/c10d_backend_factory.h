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

/// Creates c10d backends for the tensors of one device type, as c10d's NCCL and XCCL backends are. Every communicator
/// has a c10d backend of its own, also those that duplicate() and split() make. A communicator makes the calls of its
/// backend on one thread at a time, in the same order on all ranks. The order of calls of different communicators may
/// differ between ranks: give NCCL-like backends enough resources to run the collectives of two communicators
/// concurrently, or make the calls of different communicators in the same order on all ranks.
struct C10dBackendFactory {
  std::string name;          ///< the first part of Communicator::backend_name(), "nccl"
  c10::DeviceType device{};  ///< of the tensors that the backends exchange
  /// Creates the backend of rank `rank` in a group of `size` ranks, for tensors on `on`. `group` is unique in the job.
  /// Every rank of the group calls it. The backend must support asynchronous allreduce() and abort(); the other
  /// collectives on device tensors need broadcast(), _allgather_base(), _reduce_scatter_base() and alltoall_base().
  std::function<c10::intrusive_ptr<c10d::Backend>(const std::string& group, int rank, int size, c10::Device on)> make;
};

}  // namespace tutti
