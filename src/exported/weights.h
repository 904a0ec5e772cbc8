#pragma once
// The tensors of a .pt2 file.
#include <ATen/core/TensorBody.h>

#include <map>
#include <string>

#include "exported/archive.h"
#include "exported/program.h"

namespace tutti::exported {

struct LoadedTensor {
  at::Tensor tensor{};
  bool is_parameter = false;
  bool requires_grad = false;
  Device device{};  ///< where it was when it was exported
};

/// Reads the tensors that `weights` describe from `folder` of the archive to CPU memory. Those that share a record
/// share memory, and those that are one tensor in Python are one tensor. Throws CheckpointError for sizes, strides and
/// offsets that reach outside a record; allocates no more than the records have.
std::map<std::string, LoadedTensor> load_tensors(const Archive& archive, const std::string& folder,
                                                 const std::map<std::string, Weight>& weights);

}  // namespace tutti::exported
