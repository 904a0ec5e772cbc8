#include "tutti/checkpoint/model_file.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <sstream>

#include "checkpoint/sharded_model.h"
#include "checkpoint/tied_tensors.h"
#include "device/host_copy.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

bool equal_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  const at::Tensor y = b.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  return x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

// The first name of tensor `name`. The names of a tied tensor have the same first name.
const std::string& first_name(const std::map<std::string, std::string>& tied, const std::string& name) {
  const auto entry = tied.find(name);
  return entry == tied.end() ? name : entry->second;
}

// Why `from` cannot be copied into the model's tensor `into`; empty if it can.
std::string misfit(const std::string& name, const at::Tensor& into, const at::Tensor& from) {
  if (!from.defined()) return "'" + name + "' is undefined. ";
  if (into.sizes() != from.sizes()) {
    return "'" + name + "' is " + shape_of(from) + ", but the model's is " + shape_of(into) + ". ";
  }
  if (from.is_complex() && !into.is_complex()) return "'" + name + "' is complex, but the model's is real. ";
  const std::string here = "The model's '" + name + "' ";
  if (into.is_meta()) return here + "is on the meta device, which has no values. ";
  if (into.layout() != from.layout()) return here + "is not dense. ";
  if (at::has_internal_overlap(into) == at::MemOverlap::Yes) {
    return here + "has elements that share memory, as after expand(): make it contiguous(). ";
  }
  return {};
}

std::set<std::string> non_persistent_buffers_of(const torch::nn::Module& model) {
  std::set<std::string> names;
  model.apply([&names](const std::string& path, const torch::nn::Module& module) {
    const auto* buffers = dynamic_cast<const NonPersistentBuffers*>(&module);
    if (buffers == nullptr) return;
    for (const std::string& name : buffers->non_persistent_buffers())
      names.insert(path.empty() ? name : path + "." + name);
  });
  return names;
}

LoadModelResult load(const torch::nn::Module& model, const Tensors& tensors, const LoadModelOptions& options,
                     const std::string& source) {
  const Tensors on_model = named_tensors_of(model);
  const auto tied = checkpoint::tied_names(on_model);
  const std::set<std::string> ignored = non_persistent_buffers_of(model);  // files of earlier versions contain them
  LoadModelResult result;
  std::string errors;
  std::map<std::string, std::string> chosen;  // the model's first name -> the name to load it from
  for (const auto& [name, from] : tensors) {
    const auto into = on_model.find(name);
    if (into == on_model.end()) {
      if (!ignored.contains(name)) result.unexpected.push_back(name);
      continue;
    }
    errors += misfit(name, into->second, from);
    const auto [other, is_new] = chosen.emplace(first_name(tied, name), name);
    if (!is_new && from.defined() && tensors.at(other->second).defined() &&
        !equal_bytes(tensors.at(other->second), from)) {
      errors += "'" + other->second + "' and '" + name + "' differ, but are one tensor in the model. ";
    }
  }
  for (const auto& [name, into] : on_model) {
    if (!chosen.contains(first_name(tied, name))) result.missing.push_back(name);
  }
  if (options.strict && !result.missing.empty()) errors += "Missing in the file: " + list(result.missing) + ". ";
  if (options.strict && !result.unexpected.empty())
    errors += "Unexpected in the file: " + list(result.unexpected) + ". ";
  if (!errors.empty()) {
    throw CheckpointError(source + " does not fit the model; nothing was loaded. " + errors +
                          "Load it into the model that it was saved from.");
  }
  const at::NoGradGuard no_grad;
  for (const auto& [first, name] : chosen) devices::copy_without_wait(on_model.at(first), tensors.at(name));
  return result;
}

}  // namespace

Tensors named_tensors_of(const torch::nn::Module& model) {
  Tensors tensors;
  const std::set<std::string> omitted = non_persistent_buffers_of(model);
  for (const auto& entry : model.named_parameters()) tensors.emplace(entry.key(), entry.value());
  for (const auto& entry : model.named_buffers()) {
    if (entry.value().defined() && !omitted.contains(entry.key())) tensors.emplace(entry.key(), entry.value());
  }
  return tensors;
}

void save_model(const torch::nn::Module& model, const std::filesystem::path& path, const SaveModelOptions& options) {
  Safetensors content = checkpoint::without_ties(named_tensors_of(model));
  content.metadata.emplace("format", "pt");  // Hugging Face's transformers read no file without it
  checkpoint::save_sharded(path, content, options.max_shard_bytes.value_or(std::numeric_limits<std::uint64_t>::max()));
}

LoadModelResult load_model(const torch::nn::Module& model, const std::filesystem::path& path,
                           const LoadModelOptions& options) {
  return load(model, checkpoint::load_sharded(path), options, path.string());
}

LoadModelResult load_model(const torch::nn::Module& model, const Tensors& tensors, const LoadModelOptions& options) {
  return load(model, tensors, options, "the set of tensors");
}

}  // namespace tutti
