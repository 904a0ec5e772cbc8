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
  Device device{};  ///< its device at export
};

/// Reads the tensors of `weights` from `folder` of the archive to CPU memory. Tensors of one record share memory, and
/// tied tensors are one tensor. Allocates no more bytes than the records have. Throws CheckpointError if a tensor
/// reaches outside its record.
std::map<std::string, LoadedTensor> load_tensors(const Archive& archive, const std::string& folder,
                                                 const std::map<std::string, Weight>& weights);

}  // namespace tutti::exported
