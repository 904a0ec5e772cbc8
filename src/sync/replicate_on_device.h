#pragma once
// Makes tensors on accelerators equal on all ranks: one message for each device, few kernels for any number of tensors,
// and no wait of the host for each of them.
#include <ATen/core/TensorBody.h>

#include <string>
#include <vector>

#include "sync/replicate.h"
#include "tutti/comm/communicator.h"

namespace tutti::sync {

/// The tensors of one device.
using DeviceTensors = std::vector<at::Tensor>;

/// Removes from `tensors` those that the functions below take, grouped by device in order of appearance: ranks use
/// devices of different numbers. Tensors whose elements share memory stay.
std::vector<DeviceTensors> take_device_tensors(std::vector<at::Tensor>& tensors);

/// See replicate(). Waits for the device once if `writes` is if_different.
void replicate_on_device(const DeviceTensors& tensors, const Communicator& communicator, const std::string& name,
                         DeviceWrites writes);
/// See average(). Writes the tensors in any case, and does not wait for the device.
void average_on_device(const DeviceTensors& tensors, const Communicator& communicator, const std::string& name);

}  // namespace tutti::sync
