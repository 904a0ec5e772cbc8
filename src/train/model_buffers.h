#pragma once
// Synchronizes the buffers of models.
#include <ATen/core/TensorBody.h>

#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/train/accelerator_options.h"

namespace tutti {

/// Every rank must call it, with buffers of the same shapes and dtypes.
void synchronize_buffers(const std::vector<at::Tensor>& buffers, BufferSync how, const Communicator& communicator);

}  // namespace tutti
