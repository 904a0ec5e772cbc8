#pragma once
// A model's parameters and buffers as one safetensors file with the names that Python's state_dict() gives them.
#include <torch/nn/module.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tutti {

/// Parameters and persistent buffers by name; the tensors are the model's own. A tensor that stands under several names
/// appears under each.
std::map<std::string, at::Tensor> named_tensors_of(const torch::nn::Module& model);

/// As Python's safetensors.torch.save_model: of a tensor under several names only one is written, and the file's
/// metadata says for the others which.
void save_model(const torch::nn::Module& model, const std::filesystem::path& path);

/// What load_model() is told.
struct LoadModelOptions {
  /// Names that only one side has are an error; else they are returned.
  bool strict = true;
};
/// Names that only one side has; both are empty under LoadModelOptions::strict.
struct LoadModelResult {
  std::vector<std::string> missing{};     ///< in the model, not in the file
  std::vector<std::string> unexpected{};  ///< in the file, not in the model
};

/// Copies a file's values into the model's own tensors (dtypes are converted, shapes must be equal). Throws
/// CheckpointError that lists what does not fit, before anything is copied.
LoadModelResult load_model(const torch::nn::Module& model, const std::filesystem::path& path,
                           const LoadModelOptions& options = {});
/// The same from tensors by name, for example a checkpoint's part.
LoadModelResult load_model(const torch::nn::Module& model, const std::map<std::string, at::Tensor>& tensors,
                           const LoadModelOptions& options = {});

}  // namespace tutti
