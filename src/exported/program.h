#pragma once
// A program of torch.export as typed structs: the part of torch/_export/serde/schema.py that a forward pass needs.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti::exported {

/// tutti reads the schema versions schema_major.0 to schema_major.schema_minor.
inline constexpr std::int64_t schema_major = 8;
inline constexpr std::int64_t schema_minor = 20;

struct Device {
  std::string type{};  ///< "cpu", "cuda"
  std::optional<std::int64_t> index{};
};

/// A size: a number, or an expression over symbols in the form in which sympy prints it.
struct SymInt {
  std::string expression{};  ///< empty for a number
  std::int64_t value = 0;    ///< the number, or an expression's value at export, if the file has it
};

struct TensorMeta {
  std::int64_t dtype = 0;  ///< the schema's number
  std::vector<SymInt> sizes{}, strides{};
  SymInt offset{};
  bool requires_grad = false;
  Device device{};
  std::int64_t layout = 0;
};

struct Graph;

/// An input or an output of a node.
struct Argument {
  enum class Kind {
    none,
    name,  ///< the name of a value: a tensor or a number that the graph computes
    integer,
    number,
    boolean,
    text,
    complex,
    scalar_type,
    layout,
    memory_format,
    device,
    list,
    graph,
  };
  Kind kind = Kind::none;
  std::int64_t integer = 0;  ///< also a boolean, or the schema's number of an enumerator
  double number = 0, imaginary = 0;
  std::string text{};  ///< also the name
  Device device{};
  std::vector<Argument> items{};
  std::shared_ptr<const Graph> graph{};
  bool of_size = false;  ///< true if the named value is a number, not a tensor
};

struct NamedArgument {
  std::string name{};  ///< empty for arguments of a higher-order operator
  Argument value{};
};

struct Node {
  std::string target{};  ///< "torch.ops.aten.add.Tensor", "_operator.mul", "torch.ops.higher_order.cond"
  std::vector<NamedArgument> inputs{};
  std::vector<Argument> outputs{};
  /// Path of the submodule that called the operator; empty for the model itself; nullopt in the branches of cond, of
  /// which the file does not say it.
  std::optional<std::string> module{};
  std::string module_class{};  ///< its class in Python
};

struct Graph {
  std::vector<Argument> inputs{}, outputs{};
  std::vector<Node> nodes{};
  std::map<std::string, TensorMeta> tensors{};  ///< empty in a nested graph
  std::map<std::string, SymInt> sizes{};        ///< empty in a nested graph
};

/// The role of one input of the graph.
struct Input {
  enum class Kind { parameter, buffer, constant, user, fixed };
  Kind kind = Kind::user;
  Argument value{};      ///< its name in the graph, or the value of a fixed input
  std::string target{};  ///< the tensor's name in Python
  bool persistent = true;
};

/// The role of one output of the graph.
struct Output {
  enum class Kind { user, buffer_mutation, parameter_mutation, input_mutation };
  Kind kind = Kind::user;
  Argument value{};
  std::string target{};  ///< the name of the tensor that the output overwrites
};

struct Range {
  std::optional<std::int64_t> min{}, max{};
};

struct Program {
  std::int64_t major = 0, minor = 0;
  std::string torch_version{};
  Graph graph{};
  std::vector<Input> inputs{};
  std::vector<Output> outputs{};
  std::map<std::string, Range> ranges{};  ///< by symbol
  std::vector<std::string> guards{};      ///< Python expressions that are true for valid inputs
  std::string in_spec{}, out_spec{};      ///< pytrees as JSON
  std::vector<std::string> argument_names{};
};

/// The record that holds the bytes of a weight, and their format.
struct Weight {
  std::string record{};  ///< a plain file name
  bool is_parameter = false;
  TensorMeta meta{};
};

/// Parses models/NAME.json. Throws CheckpointError if the text is invalid or its schema version is not supported.
Program parse_program(const std::string& json);
/// Parses data/weights/NAME_weights_config.json or the equivalent file for constants. Returns the weights by their
/// Python names. Throws CheckpointError if the text is invalid or a weight is pickled.
std::map<std::string, Weight> parse_weights(const std::string& json);

}  // namespace tutti::exported
