#include <functional>
#include <utility>

#include "exported/json.h"
#include "exported/program.h"
#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

using Kind = Argument::Kind;

Device parse_device(const Json& json) {
  Device device{.type = text_of(field_of(json, "type")), .index = {}};
  if (const Json* index = optional_field(json, "index")) device.index = integer_of(*index);
  return device;
}

SymInt parse_size(const Json& json) {
  const auto [kind, value] = tagged(json);
  if (kind == "as_int") return {.expression = {}, .value = integer_of(*value)};
  if (kind != "as_expr") throw CheckpointError("unknown kind of size '" + kind + "'");
  SymInt size{.expression = text_of(field_of(*value, "expr_str")), .value = 0};
  if (size.expression.empty()) throw CheckpointError("the expression of a size is empty");
  if (const Json* hint = optional_field(*value, "hint")) {
    const auto [hint_kind, hint_value] = tagged(*hint);
    if (hint_kind == "as_int") size.value = integer_of(*hint_value);
  }
  return size;
}

TensorMeta parse_meta(const Json& json) {
  TensorMeta meta;
  meta.dtype = integer_of(field_of(json, "dtype"));
  for (const Json& size : list_of(field_of(json, "sizes"))) meta.sizes.push_back(parse_size(size));
  for (const Json& stride : list_of(field_of(json, "strides"))) meta.strides.push_back(parse_size(stride));
  meta.offset = parse_size(field_of(json, "storage_offset"));
  meta.requires_grad = boolean_of(field_of(json, "requires_grad"));
  meta.device = parse_device(field_of(json, "device"));
  meta.layout = integer_of(field_of(json, "layout"));
  return meta;
}

Graph parse_graph(const Json& json, bool with_values);
Argument parse_argument(const Json& json);

Argument named(const std::string& name, bool of_size = false) {
  Argument argument{.kind = Kind::name, .text = name};
  argument.of_size = of_size;
  return argument;
}

Argument integer(const Json& json, Kind kind = Kind::integer) {
  return {.kind = kind, .integer = integer_of(json)};
}

Argument number(const Json& json) {
  return {.kind = Kind::number, .number = number_of(json)};
}

Argument boolean(const Json& json) {
  return {.kind = Kind::boolean, .integer = boolean_of(json) ? 1 : 0};
}

Argument text(const Json& json) {
  return {.kind = Kind::text, .text = text_of(json)};
}

Argument tensor(const Json& json) {
  return named(text_of(field_of(json, "name")));
}

// A name, or a number that `plain` reads.
template <typename Plain>
Argument symbolic(const Json& json, const char* plain_name, Plain plain) {
  const auto [kind, value] = tagged(json);
  if (kind == "as_name") return named(text_of(*value), true);
  if (kind == plain_name) return plain(*value);
  throw CheckpointError("unknown kind of number '" + kind + "'");
}

Argument symbolic_integer(const Json& json) {
  return symbolic(json, "as_int", [](const Json& value) { return integer(value); });
}

Argument symbolic_number(const Json& json) {
  return symbolic(json, "as_float", [](const Json& value) { return number(value); });
}

Argument symbolic_boolean(const Json& json) {
  return symbolic(json, "as_bool", [](const Json& value) { return boolean(value); });
}

Argument optional_tensor(const Json& json) {
  const auto [kind, value] = tagged(json);
  if (kind == "as_none") return {};
  if (kind == "as_tensor") return tensor(*value);
  throw CheckpointError("unknown kind of optional tensor '" + kind + "'");
}

template <typename Item>
Argument list(const Json& json, Item item) {
  Argument argument{.kind = Kind::list};
  for (const Json& one : list_of(json)) argument.items.push_back(item(one));
  return argument;
}

Argument graph(const Json& json) {
  Argument argument{.kind = Kind::graph, .text = text_of(field_of(json, "name"))};
  argument.graph = std::make_shared<const Graph>(parse_graph(field_of(json, "graph"), false));
  return argument;
}

Argument complex(const Json& json) {
  return {.kind = Kind::complex,
          .number = number_of(field_of(json, "real")),
          .imaginary = number_of(field_of(json, "imag"))};
}

// A parser for each kind of argument, by the name in the schema.
const std::map<std::string, std::function<Argument(const Json&)>>& argument_kinds() {
  const auto plain_integer = [](const Json& json) { return integer(json); };
  const auto of_kind = [](Kind kind) { return [kind](const Json& json) { return integer(json, kind); }; };
  const auto list_of_items = [](auto item) { return [item](const Json& json) { return list(json, item); }; };
  static const std::map<std::string, std::function<Argument(const Json&)>> kinds = {
      {"as_none", [](const Json&) { return Argument{}; }},
      {"as_tensor", tensor},
      {"as_tensors", list_of_items(tensor)},
      {"as_int", plain_integer},
      {"as_ints", list_of_items(plain_integer)},
      {"as_float", number},
      {"as_floats", list_of_items(number)},
      {"as_string", text},
      {"as_strings", list_of_items(text)},
      {"as_sym_int", symbolic_integer},
      {"as_sym_ints", list_of_items(symbolic_integer)},
      {"as_sym_float", symbolic_number},
      {"as_sym_floats", list_of_items(symbolic_number)},
      {"as_sym_bool", symbolic_boolean},
      {"as_sym_bools", list_of_items(symbolic_boolean)},
      {"as_scalar_type", of_kind(Kind::scalar_type)},
      {"as_memory_format", of_kind(Kind::memory_format)},
      {"as_layout", of_kind(Kind::layout)},
      {"as_device", [](const Json& json) { return Argument{.kind = Kind::device, .device = parse_device(json)}; }},
      {"as_bool", boolean},
      {"as_bools", list_of_items(boolean)},
      {"as_graph", graph},
      {"as_optional_tensor", optional_tensor},
      {"as_optional_tensors", list_of_items(optional_tensor)},
      {"as_complex", complex},
      {"as_nested_tensors", list_of_items(list_of_items(tensor))},
      {"as_int_lists", list_of_items(list_of_items(plain_integer))},
      {"as_float_lists", list_of_items(list_of_items(number))},
  };
  return kinds;
}

Argument parse_argument(const Json& json) {
  const auto [kind, value] = tagged(json);
  const auto found = argument_kinds().find(kind);
  if (found == argument_kinds().end()) {
    throw CheckpointError("tutti does not support arguments of the kind '" + kind + "'");
  }
  return found->second(*value);
}

// Sets the path and class in the last entry of "key,path,class;key,path,class".
void parse_module(const Json& node, Node& parsed) {
  const Json* metadata = optional_field(node, "metadata");
  const Json* stack = metadata == nullptr ? nullptr : optional_field(*metadata, "nn_module_stack");
  if (stack == nullptr) return;
  const std::string& all = text_of(*stack);
  const std::string last = all.substr(all.rfind(';') == std::string::npos ? 0 : all.rfind(';') + 1);
  const auto begin = last.find(',');
  const auto end = begin == std::string::npos ? begin : last.find(',', begin + 1);
  if (end == std::string::npos || last.starts_with("_empty_nn_module_stack")) return;
  parsed.module = last.substr(begin + 1, end - begin - 1);
  parsed.module_class = last.substr(end + 1);
}

Node parse_node(const Json& json) {
  Node node{.target = text_of(field_of(json, "target")), .inputs = {}, .outputs = {}};
  parse_module(json, node);
  for (const Json& input : list_of(field_of(json, "inputs"))) {
    node.inputs.push_back({.name = text_of(field_of(input, "name")), .value = parse_argument(field_of(input, "arg"))});
  }
  for (const Json& output : list_of(field_of(json, "outputs"))) node.outputs.push_back(parse_argument(output));
  return node;
}

Graph parse_graph(const Json& json, bool with_values) {
  Graph parsed;
  for (const Json& input : list_of(field_of(json, "inputs"))) parsed.inputs.push_back(parse_argument(input));
  for (const Json& output : list_of(field_of(json, "outputs"))) parsed.outputs.push_back(parse_argument(output));
  for (const Json& node : list_of(field_of(json, "nodes"))) parsed.nodes.push_back(parse_node(node));
  if (!with_values) return parsed;
  for (const auto& [name, meta] : object_of(field_of(json, "tensor_values")).items()) {
    parsed.tensors.emplace(name, parse_meta(meta));
  }
  for (const auto& [name, size] : object_of(field_of(json, "sym_int_values")).items()) {
    parsed.sizes.emplace(name, parse_size(size));
  }
  return parsed;
}

Input parse_input(const Json& json) {
  const auto [kind, spec] = tagged(json);
  Input input;
  const auto tensor_of = [&, spec = spec](const char* target) {
    input.value = tensor(field_of(*spec, "arg"));
    input.target = text_of(field_of(*spec, target));
  };
  if (kind == "parameter") {
    input.kind = Input::Kind::parameter;
    tensor_of("parameter_name");
  } else if (kind == "buffer") {
    input.kind = Input::Kind::buffer;
    tensor_of("buffer_name");
    input.persistent = boolean_of(field_of(*spec, "persistent"));
  } else if (kind == "tensor_constant") {
    input.kind = Input::Kind::constant;
    tensor_of("tensor_constant_name");
  } else if (kind == "user_input") {
    input.value = parse_argument(field_of(*spec, "arg"));
    // An export with a number as an input makes it a fixed input.
    if (input.value.kind != Kind::name) input.kind = Input::Kind::fixed;
  } else if (kind == "constant_input") {
    input.kind = Input::Kind::fixed;
    input.target = text_of(field_of(*spec, "name"));
    input.value = parse_argument(field_of(*spec, "value"));
    if (input.value.kind == Kind::name)
      throw CheckpointError("the fixed input '" + input.target + "' is not a constant");
  } else {
    throw CheckpointError("tutti does not support inputs of the kind '" + kind +
                          "' (objects of Python or C++ classes)");
  }
  return input;
}

Output parse_output(const Json& json) {
  const auto [kind, spec] = tagged(json);
  Output output;
  const auto mutation = [&, spec = spec](Output::Kind mutated, const char* target) {
    output.kind = mutated;
    output.value = tensor(field_of(*spec, "arg"));
    output.target = text_of(field_of(*spec, target));
  };
  if (kind == "user_output") {
    output.value = parse_argument(field_of(*spec, "arg"));
  } else if (kind == "loss_output") {
    output.value = tensor(field_of(*spec, "arg"));
  } else if (kind == "buffer_mutation") {
    mutation(Output::Kind::buffer_mutation, "buffer_name");
  } else if (kind == "parameter_mutation") {
    mutation(Output::Kind::parameter_mutation, "parameter_name");
  } else if (kind == "user_input_mutation") {
    mutation(Output::Kind::input_mutation, "user_input_name");
  } else {
    throw CheckpointError("tutti does not support outputs of the kind '" + kind +
                          "': export the model itself, not its backward pass");
  }
  return output;
}

void check_version(const Program& program) {
  if (program.major == schema_major && program.minor <= schema_minor) return;
  const std::string version = std::to_string(program.major) + "." + std::to_string(program.minor);
  const std::string ours = std::to_string(schema_major) + "." + std::to_string(schema_minor);
  const bool newer = program.major >= schema_major;
  throw CheckpointError("the schema version is " + version + " (PyTorch " + program.torch_version +
                        "), but tutti reads " + std::to_string(schema_major) + ".0 to " + ours +
                        ": export the model with " +
                        (newer ? "an older PyTorch, or use a newer tutti" : "a newer PyTorch"));
}

void parse_calls(const Json& entries, Program& program) {
  for (const Json& entry : list_of(entries)) {
    if (!text_of(field_of(entry, "fqn")).empty()) continue;
    const Json& signature = field_of(entry, "signature");
    program.in_spec = text_of(field_of(signature, "in_spec"));
    program.out_spec = text_of(field_of(signature, "out_spec"));
    if (const Json* names = optional_field(signature, "forward_arg_names")) {
      for (const Json& name : list_of(*names)) program.argument_names.push_back(text_of(name));
    }
    return;
  }
  throw CheckpointError("the program does not describe its inputs");
}

}  // namespace

Program parse_program(const std::string& json) {
  const Json root = parse_json(json, "the program");
  Program program;
  // The version is first, because other fields may differ between versions.
  const Json& version = field_of(root, "schema_version");
  program.major = integer_of(field_of(version, "major"));
  program.minor = integer_of(field_of(version, "minor"));
  if (const Json* torch = optional_field(root, "torch_version")) program.torch_version = text_of(*torch);
  check_version(program);
  const Json& module = field_of(root, "graph_module");
  program.graph = parse_graph(field_of(module, "graph"), true);
  const Json& signature = field_of(module, "signature");
  for (const Json& input : list_of(field_of(signature, "input_specs"))) program.inputs.push_back(parse_input(input));
  for (const Json& output : list_of(field_of(signature, "output_specs")))
    program.outputs.push_back(parse_output(output));
  parse_calls(field_of(module, "module_call_graph"), program);
  for (const auto& [symbol, range] : object_of(field_of(root, "range_constraints")).items()) {
    Range& parsed = program.ranges[symbol];
    if (const Json* min = optional_field(range, "min_val")) parsed.min = integer_of(*min);
    if (const Json* max = optional_field(range, "max_val")) parsed.max = integer_of(*max);
  }
  if (const Json* guards = optional_field(root, "guards_code")) {
    for (const Json& guard : list_of(*guards)) program.guards.push_back(text_of(guard));
  }
  if (program.inputs.size() != program.graph.inputs.size() || program.outputs.size() != program.graph.outputs.size()) {
    throw CheckpointError("the program's signature and its graph have different numbers of inputs or outputs");
  }
  return program;
}

std::map<std::string, Weight> parse_weights(const std::string& json) {
  const Json root = parse_json(json, "the list of weights");
  std::map<std::string, Weight> weights;
  for (const auto& [name, entry] : object_of(field_of(root, "config")).items()) {
    Weight weight{.record = text_of(field_of(entry, "path_name")),
                  .is_parameter = boolean_of(field_of(entry, "is_param")),
                  .meta = {}};
    if (weight.record.empty() || weight.record.find('/') != std::string::npos || weight.record == "..") {
      throw CheckpointError("weight '" + name + "' names the record '" + weight.record +
                            "', which is not a plain file name");
    }
    if (boolean_of(field_of(entry, "use_pickle"))) {
      throw CheckpointError("weight '" + name +
                            "' is pickled, and unpickling can run code: tutti reads plain tensors only (not tensor "
                            "subclasses, sparse tensors or objects)");
    }
    weight.meta = parse_meta(field_of(entry, "tensor_meta"));
    weights.emplace(name, std::move(weight));
  }
  return weights;
}

}  // namespace tutti::exported
