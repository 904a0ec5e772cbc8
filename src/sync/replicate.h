#pragma once
// Makes tensors equal on all ranks, where they are: no tensor moves from its device to the host.
//
// A tensor is written only if its bytes differ: a graph of autograd may still need it for a backward pass, and refuses
// a tensor whose version counter has moved. On a device that comparison waits for the device.
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::sync {

/// When tensors on accelerators are written. Tensors in CPU memory are written if they differ.
enum class DeviceWrites {
  if_different,  ///< if their bytes differ: the host waits once for each device
  always,        ///< on all ranks but rank 0, without a wait: pass tensors whose version counter no graph reads
};

/// Broadcasts the tensors of rank 0 to all ranks, some megabytes at a time. Shapes, dtypes and types of device must
/// agree. Every rank must call it. `name` is the name of the calls. Throws UsageError for a tensor that cannot hold the
/// values because its elements share memory.
void replicate(std::vector<at::Tensor> tensors, const Communicator& communicator, const std::string& name = "replicate",
               DeviceWrites writes = DeviceWrites::if_different);

/// Replaces floating-point tensors by their means over the ranks. As replicate(), with DeviceWrites::always. The means
/// are computed in fp64, where the device has it.
void average(std::vector<at::Tensor> tensors, const Communicator& communicator, const std::string& name);

/// The elements of all `tensors` in one CPU tensor of `dtype`.
at::Tensor flatten(const std::vector<at::Tensor>& tensors, at::ScalarType dtype);
/// The inverse of flatten(). Throws as replicate() does.
void unflatten_into(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);

}  // namespace tutti::sync
