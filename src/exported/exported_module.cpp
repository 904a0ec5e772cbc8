#include "tutti/exported/exported_module.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/tied_tensors.h"
#include "exported/load_program.h"
#include "exported/module_tree.h"
#include "exported/run.h"
#include "exported/values.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/core/error.h"

namespace tutti {

using exported::Input;
using exported::LoadedProgram;
using exported::Output;

struct ExportedModule::Impl {
  explicit Impl(LoadedProgram program) : loaded(std::move(program)) {}

  /// One input of the graph: a tensor of the module, or the next input of the caller.
  struct Bound {
    std::optional<at::Tensor> tensor{};
    bool constant = false;
    bool follows_dtype = false;  ///< true for a constant that had the dtype of the parameters when it was loaded
    bool overwritten = false;    ///< true if an output of the graph replaces the value after the pass

    /// Copies a buffer that the pass replaces, because backward may need the old value.
    at::Tensor value() const { return overwritten ? tensor->detach().clone() : *tensor; }
  };

  LoadedProgram loaded;
  std::vector<Bound> bound{};
  std::vector<const torch::nn::Module*> modes{};  ///< by Step::module
  /// The modules of CompileReport::eval_only.
  std::map<std::string, const torch::nn::Module*> eval_only{};
  std::map<std::string, at::Tensor> state{};  ///< parameters and buffers, which outputs may overwrite, by Python name
  std::set<std::string> not_persistent{};
  c10::Device export_device{c10::kCPU};
  c10::Device device{c10::kCPU};
  std::optional<at::Tensor> reference{};  ///< a floating-point parameter: the model's device and dtype
  std::optional<c10::ScalarType> export_dtype{};
  std::atomic<bool> has_warned = false;  // of layers that train otherwise than in Python

  void warn_once();
  exported::RunState run_state(std::span<const char> training) const {
    exported::RunState now;
    now.training = training;
    now.export_device = export_device;
    now.device = reference ? reference->device() : device;
    now.export_dtype = export_dtype;
    if (reference) now.dtype = reference->scalar_type();
    return now;
  }

  void apply_mutations(const std::vector<c10::IValue>& outputs, const std::vector<c10::IValue>& inputs, bool training);
  void find_export_placement();
  void find_constants_that_follow();
  void move_constants();
};

namespace {

constexpr const char* module_name = "ExportedModule";

}  // namespace

ExportedModule::ExportedModule(const std::filesystem::path& path, const std::string& model)
    : torch::nn::Module(module_name), impl_(std::make_unique<Impl>(exported::load_program(path, model))) {
  exported::require_operators(impl_->loaded.report);
  Impl& impl = *impl_;
  try {
    exported::ModuleTree tree(*this);
    for (const Input& input : impl.loaded.program.inputs) {
      if (input.kind == Input::Kind::user || input.kind == Input::Kind::fixed) {
        impl.bound.emplace_back();
        continue;
      }
      const exported::LoadedTensor& tensor = impl.loaded.tensor_of(input);
      const bool constant = input.kind == Input::Kind::constant;
      if (!constant) tree.add(input.target, tensor.tensor, tensor.requires_grad, input.kind == Input::Kind::parameter);
      if (input.kind == Input::Kind::buffer && !input.persistent) impl.not_persistent.insert(input.target);
      if (!constant) impl.state.emplace(input.target, tensor.tensor);
      impl.bound.push_back({.tensor = tensor.tensor,
                            .constant = constant,
                            .overwritten = input.kind == Input::Kind::buffer && impl.loaded.overwrites(input.target)});
    }
    // Tensors that the graph does not use are also part of the model's state.
    for (const auto& [name, tensor] : impl.loaded.weights) {
      if (impl.state.contains(name)) continue;
      tree.add(name, tensor.tensor, tensor.requires_grad, tensor.is_parameter);
    }
    for (const std::string& module : impl.loaded.report.modules) impl.modes.push_back(&tree.module(module));
    for (const auto& [node, module] : impl.loaded.report.eval_only) impl.eval_only.emplace(node, &tree.module(module));
  } catch (const CheckpointError& error) {
    throw CheckpointError("cannot read " + path.string() + ": " + error.what());
  }
  impl.find_export_placement();
  impl.find_constants_that_follow();
}

ExportedModule::~ExportedModule() = default;

void ExportedModule::Impl::warn_once() {
  if (has_warned) return;
  const auto list = [](const auto& layers) {
    std::string text;
    for (const std::string& layer : layers) text += (text.empty() ? "" : ", ") + layer;
    return text;
  };
  std::vector<std::string> stay_in_evaluation;
  for (const auto& [node, module] : eval_only) {
    if (module->is_training()) stay_in_evaluation.push_back(node);
  }
  const auto& layers = loaded.report.sync_batch_norms;
  const bool has_cause = !stay_in_evaluation.empty() || !layers.empty();
  if (!has_cause || has_warned.exchange(true)) return;  // another thread may have warned meanwhile
  if (!stay_in_evaluation.empty()) {
    TORCH_WARN(
        "ExportedModule: train() has no effect on ", list(stay_in_evaluation),
        ", which was exported in eval mode. Call model.train() in Python before torch.export.export. If it should "
        "stay in evaluation, call eval() of that submodule in C++");
  }
  if (!layers.empty()) {
    TORCH_WARN("ExportedModule: the SyncBatchNorm ", list(layers),
               " normalizes by the batch of each rank, because torch.export keeps only its batch norm");
  }
}

c10::IValue ExportedModule::forward(std::vector<c10::IValue> inputs, std::map<std::string, c10::IValue> named) {
  if (is_training() && at::GradMode::is_enabled()) impl_->warn_once();
  const LoadedProgram& loaded = impl_->loaded;
  const auto leaves =
      exported::flatten_inputs(loaded.inputs, loaded.program.argument_names, std::move(inputs), std::move(named));
  loaded.guards->check(leaves);
  std::vector<c10::IValue> values;
  values.reserve(impl_->bound.size());
  std::size_t next = 0;
  for (const Impl::Bound& bound : impl_->bound) {
    values.push_back(bound.tensor ? c10::IValue(bound.value()) : leaves[next++]);
  }
  std::vector<char> training;
  training.reserve(impl_->modes.size());
  for (const torch::nn::Module* module : impl_->modes) training.push_back(module->is_training() ? 1 : 0);
  auto outputs = exported::run(*loaded.plan, std::move(values), impl_->run_state(training));
  impl_->apply_mutations(outputs, leaves, is_training());
  std::vector<c10::IValue> results;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (loaded.program.outputs[i].kind == Output::Kind::user) results.push_back(std::move(outputs[i]));
  }
  return exported::unflatten(loaded.outputs, std::move(results));
}

std::vector<at::Tensor> ExportedModule::parameters(bool recurse) const {
  return checkpoint::without_repeats(torch::nn::Module::parameters(recurse));
}

// Programs without in-place operators return the new values of buffers as additional outputs.
void ExportedModule::Impl::apply_mutations(const std::vector<c10::IValue>& outputs,
                                           const std::vector<c10::IValue>& inputs, bool training) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Output& output = loaded.program.outputs[i];
    if (output.kind == Output::Kind::user) continue;
    if (output.kind == Output::Kind::input_mutation) {
      inputs[loaded.mutated_input(output.target)].toTensor().copy_(outputs[i].toTensor());
      continue;
    }
    if (!training && exported::is_batch_counter(output.target)) continue;
    const at::NoGradGuard no_grad;
    state.at(output.target).copy_(outputs[i].toTensor());
  }
}

void ExportedModule::Impl::find_export_placement() {
  bool first = true;
  for (const auto* tensors : {&loaded.weights, &loaded.constants}) {
    for (const auto& [name, tensor] : *tensors) {
      if (first) export_device = exported::device_of(tensor.device);
      first = false;
      if (!tensor.is_parameter || !tensor.tensor.is_floating_point()) continue;
      const bool same = !reference || export_dtype == tensor.tensor.scalar_type();
      if (!reference) reference = tensor.tensor;
      export_dtype = same ? std::optional(tensor.tensor.scalar_type()) : std::nullopt;
      if (!same) return;
    }
  }
  for (const auto& [name, meta] : loaded.program.graph.tensors) {
    if (first) export_device = exported::device_of(meta.device);
    first = false;
  }
}

void ExportedModule::Impl::find_constants_that_follow() {
  for (Bound& input : bound) {
    input.follows_dtype = input.constant && export_dtype && input.tensor->scalar_type() == *export_dtype;
  }
}

void ExportedModule::Impl::move_constants() {
  const auto now = run_state({});
  for (Bound& input : bound) {
    if (!input.constant) continue;
    *input.tensor = input.tensor->to(now.device, input.follows_dtype ? now.dtype : input.tensor->scalar_type());
  }
}

// Overrides the base class, which converts integers too. Python's to() does not.
void ExportedModule::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  const auto converted = [&](const at::Tensor& tensor) {
    const bool floating = tensor.is_floating_point() || tensor.is_complex();
    return tensor.detach().to(device, floating ? dtype : tensor.scalar_type(), non_blocking);
  };
  for (at::Tensor& parameter : parameters()) parameter.set_data(converted(parameter));
  for (at::Tensor& buffer : buffers()) buffer.set_data(converted(buffer));
  impl_->device = device;
  impl_->move_constants();
}

void ExportedModule::to(torch::Dtype dtype, bool non_blocking) {
  to(impl_->run_state({}).device, dtype, non_blocking);
}

void ExportedModule::to(torch::Device device, bool non_blocking) {
  for (at::Tensor& parameter : parameters()) parameter.set_data(parameter.detach().to(device, non_blocking));
  for (at::Tensor& buffer : buffers()) buffer.set_data(buffer.detach().to(device, non_blocking));
  impl_->device = device;
  impl_->move_constants();
}

std::set<std::string> ExportedModule::non_persistent_buffers() const {
  return impl_->not_persistent;
}

void ExportedModule::save(const std::filesystem::path& path) const {
  save_safetensors(path, {.tensors = named_tensors_of(*this), .metadata = {{"format", "pt"}}});
}

void ExportedModule::load(const std::filesystem::path& path) {
  load_model(*this, path);
}

at::Tensor ExportedModule::tensor_of(const c10::IValue& output) {
  if (output.isTensor()) return output.toTensor();
  throw UsageError("ExportedModule: the program returns " + output.tagKind() +
                   ", not a tensor: call forward(std::vector<c10::IValue>{...})");
}

}  // namespace tutti
