#pragma once
// The collectives of a communicator on the tensors of a device, by the calls of a c10d backend. They run in the order
// of the calling thread's current stream, and return when the work is queued. Arguments are those of Backend.
#include <ATen/core/TensorBody.h>

#include <vector>

#include "comm/backend/operation.h"
#include "comm/device/device_group.h"
#include "tutti/comm/reduce_op.h"

namespace tutti::comm::on_device {

void all_reduce(DeviceGroup& group, const Operation& operation, const at::Tensor& flat, ReduceOp op);
void all_gather(DeviceGroup& group, const Operation& operation, const at::Tensor& output, const at::Tensor& input);
void reduce_scatter(DeviceGroup& group, const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                    ReduceOp op);
void all_to_all(DeviceGroup& group, const Operation& operation, const at::Tensor& output, const at::Tensor& input);
void broadcast(DeviceGroup& group, const Operation& operation, const at::Tensor& tensor, int root);
void all_to_all_v(DeviceGroup& group, const Operation& operation, const std::vector<at::Tensor>& outputs,
                  const std::vector<at::Tensor>& inputs);

}  // namespace tutti::comm::on_device
