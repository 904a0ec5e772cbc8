#pragma once
// A model's parameters and buffers as safetensors files, under the names of Python's state_dict().
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tutti {

/// A base of modules with buffers that Python's state_dict() omits: register_buffer(name, tensor, persistent=False).
/// LibTorch's register_buffer() has no such flag. Files and checkpoints do not contain these buffers.
class NonPersistentBuffers {
 public:
  virtual ~NonPersistentBuffers() = default;
  /// Returns their names, as in the module's named_buffers().
  virtual std::set<std::string> non_persistent_buffers() const = 0;
};

/// Parameters and persistent buffers by name. The tensors share memory with the model. A tensor with several names
/// appears under each of them. Buffers are persistent unless the model or a submodule lists them as
/// NonPersistentBuffers.
std::map<std::string, at::Tensor> named_tensors_of(const torch::nn::Module& model);

/// Options of save_model().
struct SaveModelOptions {
  /// More bytes of tensors than this are divided among several files; a larger tensor has a file of its own. Default:
  /// one file of any size.
  std::optional<std::uint64_t> max_shard_bytes{};
};

/// Writes a safetensors file, as Python's safetensors.torch.save_model does: a tensor with several names is written
/// under one of them, and the file's metadata maps the other names to it. A file of this name is replaced when the new
/// one is complete.
///
/// With several files, "model.safetensors" becomes model-00001-of-00003.safetensors and so on, with the index
/// model.safetensors.index.json, as Hugging Face's libraries name them. Files of an earlier call are replaced when all
/// new files are complete. What an earlier call with this path wrote in another form is removed.
///
/// Throws UsageError if a tensor cannot be saved, and CheckpointError if writing fails. Not a collective.
void save_model(const torch::nn::Module& model, const std::filesystem::path& path,
                const SaveModelOptions& options = {});

/// Options of load_model().
struct LoadModelOptions {
  /// True: missing and unexpected names are an error. False: load_model() returns them.
  bool strict = true;
};
/// Names that only the model or only the file has; both lists are empty under LoadModelOptions::strict.
struct LoadModelResult {
  std::vector<std::string> missing{};     ///< in the model, not in the file
  std::vector<std::string> unexpected{};  ///< in the file, not in the model
};

/// Copies the values of a file into the model's tensors. `path` is the path given to save_model(), a safetensors file,
/// or the index of several. Converts dtypes; shapes must be equal. Throws CheckpointError, listing every tensor that
/// does not fit, before it copies any. Ignores the file's values of non-persistent buffers. Not a collective.
LoadModelResult load_model(const torch::nn::Module& model, const std::filesystem::path& path,
                           const LoadModelOptions& options = {});
/// As above, from tensors by name, for example a part of a checkpoint.
LoadModelResult load_model(const torch::nn::Module& model, const std::map<std::string, at::Tensor>& tensors,
                           const LoadModelOptions& options = {});

}  // namespace tutti
