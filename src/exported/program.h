#pragma once
// A program of torch.export as typed structs: what torch/_export/serde/schema.py has of it that running it needs.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti::exported {

/// The versions of the schema that are understood: any minor one of this major one up to this.
inline constexpr std::int64_t schema_major = 8;
inline constexpr std::int64_t schema_minor = 20;

struct Device {
  std::string type{};  ///< "cpu", "cuda"
  std::optional<std::int64_t> index{};
};

/// A size: a number, or an expression of symbols as sympy prints it.
struct SymInt {
  std::string expression{};  ///< empty for a number
  std::int64_t value = 0;    ///< the number; of an expression what it was at the export, where that is known
};

struct TensorMeta {
  std::int64_t dtype = 0;  ///< numbered as in the schema
  std::vector<SymInt> sizes{}, strides{};
  SymInt offset{};
  bool requires_grad = false;
  Device device{};
  std::int64_t layout = 0;
};

struct Graph;

/// What a node is given, or gives.
struct Argument {
  enum class Kind {
    none,
    name,  ///< of a value: a tensor or a number that the graph has made
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
  std::int64_t integer = 0;  ///< also the booleans, and the enumerations as the schema numbers them
  double number = 0, imaginary = 0;
  std::string text{};  ///< also names
  Device device{};
  std::vector<Argument> items{};
  std::shared_ptr<const Graph> graph{};
  bool of_size = false;  ///< a name that stands for a number and not for a tensor
};

struct NamedArgument {
  std::string name{};  ///< empty for the arguments of a higher-order operator
  Argument value{};
};

struct Node {
  std::string target{};  ///< "torch.ops.aten.add.Tensor", "_operator.mul", "torch.ops.higher_order.cond"
  std::vector<NamedArgument> inputs{};
  std::vector<Argument> outputs{};
  std::string module{};  ///< path of the module that it was traced in; empty for the model itself
};

struct Graph {
  std::vector<Argument> inputs{}, outputs{};
  std::vector<Node> nodes{};
  std::map<std::string, TensorMeta> tensors{};  ///< of the whole program's graph alone
  std::map<std::string, SymInt> sizes{};        ///< likewise
};

/// What one input of the graph is.
struct Input {
  enum class Kind { parameter, buffer, constant, user, fixed };
  Kind kind = Kind::user;
  Argument value{};      ///< its name in the graph; of a fixed one the value that the caller has to give
  std::string target{};  ///< the tensor's name in Python
  bool persistent = true;
};

/// What one output of the graph is.
struct Output {
  enum class Kind { user, buffer_mutation, parameter_mutation, input_mutation };
  Kind kind = Kind::user;
  Argument value{};
  std::string target{};  ///< what is overwritten
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
  std::vector<std::string> guards{};      ///< Python expressions that inputs must fulfil
  std::string in_spec{}, out_spec{};      ///< pytrees as JSON
  std::vector<std::string> argument_names{};
};

/// Where the bytes of a weight are, and what they mean.
struct Weight {
  std::string record{};  ///< a plain file name
  bool is_parameter = false;
  TensorMeta meta{};
};

/// models/NAME.json. Throws CheckpointError for what is not one, or is of a schema that is not understood.
Program parse_program(const std::string& json);
/// data/weights/NAME_weights_config.json and its like, by the tensors' Python names. Throws CheckpointError.
std::map<std::string, Weight> parse_weights(const std::string& json);

}  // namespace tutti::exported
