#pragma once
// A compiled graph: operators are resolved; arguments are constants or slots of a frame.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti::exported {

struct Plan;

/// A value: a constant, or a slot of the frame.
struct Operand {
  std::int32_t slot = -1;  ///< -1: the constant
  bool last = false;       ///< the last read of the slot
  c10::IValue constant{};
};

/// How an argument is computed when the step runs.
enum class Conversion : std::uint8_t {
  value,           ///< the item as it is
  wrapped_number,  ///< a number for a parameter that is a tensor
  floating,        ///< a number for a parameter that is a float
  integers,        ///< a list, like the next five
  floats,
  booleans,
  numbers,
  tensors,
  optional_tensors,
  mode,         ///< the constant in training mode, `evaluation` otherwise
  device,       ///< the export device is replaced by the model's device
  scalar_type,  ///< the export dtype is replaced by the model's dtype
};

/// An argument that differs between runs.
struct DynamicArgument {
  std::uint32_t position = 0;  ///< among the arguments
  Conversion conversion = Conversion::value;
  std::vector<Operand> items{};
  c10::IValue evaluation{};
};

/// The destination of a result.
struct ResultSlots {
  enum class Kind : std::uint8_t { ignored, value, number, list };
  Kind kind = Kind::ignored;
  std::vector<std::int32_t> slots{};  ///< one for a single result; -1: not read
};

/// Arithmetic on numbers, mostly sizes.
enum class SizeOperator : std::uint8_t;

struct Step {
  enum class Kind : std::uint8_t { call, size, cond, autocast, grad_mode };
  Kind kind = Kind::call;
  std::optional<c10::OperatorHandle> op{};
  SizeOperator size_operator{};
  std::vector<c10::IValue> arguments{};  ///< constants; None for dynamic arguments
  std::vector<DynamicArgument> dynamic_arguments{};
  std::vector<ResultSlots> result_slots{};
  std::int32_t module = 0;        ///< index of the module whose mode (training or evaluation) applies
  bool only_in_training = false;  ///< true if the step increments a batch counter
  /// The argument of batch norm that says whether it normalizes by the statistics of the batch; -1: no batch norm.
  std::int32_t by_batch_statistics = -1;
  std::vector<std::shared_ptr<const Plan>> graphs{};
  std::vector<Operand> operands{};  ///< inputs of `graphs`, or of the size operator
  std::uint32_t node = 0;           ///< number of the node, for messages
};

struct Plan {
  std::uint32_t slots = 0;
  std::uint32_t inputs = 0;  ///< the inputs are the first slots
  std::vector<Step> steps{};
  std::vector<Operand> outputs{};
  std::vector<std::string> names{};  ///< targets of the nodes, for messages
};

}  // namespace tutti::exported
