#include "exported/describe.h"

#include <ATen/core/Tensor.h>

#include <set>

#include "exported/values.h"
#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

void add_line(std::string& text, const std::string& label, const std::string& value) {
  constexpr std::size_t column = 12;
  text += label + std::string(label.size() < column ? column - label.size() : 1, ' ') + value + "\n";
}

std::string size_text(const SymInt& size) {
  if (size.expression.empty()) return std::to_string(size.value);
  try {
    const Expression expression = Expression::parse(size.expression);
    return expression.is_name() ? *expression.names().begin() : size.expression;
  } catch (const CheckpointError&) {
    return size.expression;  // computed by the program with operators that a guard does not have, such as truncation
  }
}

std::string meta_text(const TensorMeta& meta) {
  std::string sizes;
  for (const SymInt& size : meta.sizes) sizes += (sizes.empty() ? "" : ", ") + size_text(size);
  return std::string(c10::toString(scalar_type_of(meta.dtype))) + " [" + sizes + "] on " + meta.device.type;
}

std::string value_text(const Argument& value, const Graph& graph) {
  if (value.kind == Argument::Kind::name) {
    const auto meta = graph.tensors.find(value.text);
    if (!value.of_size && meta != graph.tensors.end()) return meta_text(meta->second);
    return "a number";
  }
  if (value.kind == Argument::Kind::none) return "None";
  if (value.kind == Argument::Kind::text) return "'" + value.text + "'";
  if (value.kind == Argument::Kind::boolean) return value.integer != 0 ? "True" : "False";
  if (value.kind == Argument::Kind::number) return std::to_string(value.number);
  return std::to_string(value.integer);
}

/// Counts a tensor with several names once.
struct Count {
  std::set<const at::TensorImpl*> seen{};
  std::int64_t names = 0, elements = 0, trained = 0;

  void add(const LoadedTensor& tensor) {
    ++names;
    if (!seen.insert(tensor.tensor.unsafeGetTensorImpl()).second) return;
    elements += tensor.tensor.numel();
    if (tensor.requires_grad) trained += tensor.tensor.numel();
  }
  std::string text() const { return std::to_string(names) + ", " + std::to_string(elements) + " elements"; }
};

void add_tensors(const LoadedProgram& loaded, Description& description) {
  Count parameters, buffers, constants;
  for (const Input& input : loaded.program.inputs) {
    if (input.kind == Input::Kind::constant) constants.add(loaded.tensor_of(input));
    if (input.kind == Input::Kind::buffer && !input.persistent) buffers.add(loaded.tensor_of(input));
  }
  for (const auto& [name, tensor] : loaded.weights) (tensor.is_parameter ? parameters : buffers).add(tensor);
  const std::int64_t tied = parameters.names - static_cast<std::int64_t>(parameters.seen.size());
  add_line(description.text, "parameters",
           parameters.text() + ", " + std::to_string(parameters.trained) + " of them trained" +
               (tied > 0 ? ", " + std::to_string(tied) + " names of tied tensors" : ""));
  add_line(description.text, "buffers", buffers.text());
  add_line(description.text, "constants", constants.text());
  if (parameters.trained == 0) description.problems.emplace_back("no parameter requires a gradient");
}

void add_inputs(const LoadedProgram& loaded, Description& description) {
  std::size_t next = 0;
  for (const Input& input : loaded.program.inputs) {
    if (input.kind != Input::Kind::user && input.kind != Input::Kind::fixed) continue;
    const std::string fixed = input.kind == Input::Kind::fixed ? ", fixed" : "";
    add_line(description.text, "input",
             loaded.input_names[next++] + ": " + value_text(input.value, loaded.program.graph) + fixed);
  }
}

void add_outputs(const LoadedProgram& loaded, Description& description) {
  std::vector<std::string> names;
  name_leaves(loaded.outputs, "output", names);
  std::size_t next = 0;
  for (const Output& output : loaded.program.outputs) {
    if (output.kind != Output::Kind::user) continue;
    add_line(description.text, "output", names[next++] + ": " + value_text(output.value, loaded.program.graph));
  }
}

void add_sizes(const Program& program, Description& description) {
  for (const auto& [symbol, range] : program.ranges) {
    std::string bounds = range.min ? " from " + std::to_string(*range.min) : "";
    if (range.max) bounds += " to " + std::to_string(*range.max);
    add_line(description.text, "size", symbol + ":" + (bounds.empty() ? " any" : bounds));
  }
}

}  // namespace

Description describe(const LoadedProgram& loaded) {
  Description description;
  const Program& program = loaded.program;
  add_line(description.text, "schema",
           std::to_string(program.major) + "." + std::to_string(program.minor) +
               (program.torch_version.empty() ? "" : ", PyTorch " + program.torch_version));
  add_tensors(loaded, description);
  add_inputs(loaded, description);
  add_outputs(loaded, description);
  add_sizes(program, description);
  for (const std::string& condition : loaded.guards->conditions()) add_line(description.text, "condition", condition);
  for (const auto& [name, count] : loaded.report.operators) {
    const bool missing = loaded.report.missing.contains(name);
    if (name.starts_with("aten::bernoulli")) {
      description.notes.push_back(name +
                                  " also acts in evaluation: run_decompositions() replaces some dropout layers by it, "
                                  "which eval() then does not switch off");
    }
    add_line(description.text, "operator", name + ": " + std::to_string(count) + (missing ? ", missing here" : ""));
  }
  for (const std::string& name : loaded.report.missing) {
    description.problems.push_back("the operator " + name +
                                   " is missing: load the library that defines it with --library");
  }
  for (const auto& [node, module] : loaded.report.eval_only) {
    description.problems.push_back(node +
                                   " was exported in eval mode and cannot be switched to training: call model.train() "
                                   "before torch.export.export");
  }
  for (const std::string& layer : loaded.report.sync_batch_norms) {
    description.notes.push_back(
        layer +
        " is a SyncBatchNorm, which each rank applies to its own batch: torch.export keeps only its batch norm");
  }
  for (const std::string& buffer : loaded.report.written_buffers) {
    description.notes.push_back("the buffer " + buffer +
                                " is also written in evaluation: Python's `if self.training` is fixed at export");
  }
  for (const std::string& guard : loaded.guards->unchecked()) {
    description.notes.push_back("this condition on the inputs is not checked: " + guard);
  }
  return description;
}

}  // namespace tutti::exported
