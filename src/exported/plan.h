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
  wrapped_number,  ///< a number in place of a tensor, as Python passes it
  floating,        ///< a number in place of a float
  integers,        ///< lists, by what they hold
  floats,
  booleans,
  numbers,
  tensors,
  optional_tensors,
  mode,         ///< the constant in training, else `evaluation`
  device,       ///< the device of the export becomes that of the model
  scalar_type,  ///< the dtype of the export becomes that of the model
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
  std::vector<std::int32_t> slots{};  ///< -1: not read
};

/// Arithmetic on numbers, mostly sizes.
enum class SizeOperator : std::uint8_t;

struct Step {
  enum class Kind : std::uint8_t { call, size, cond, autocast, grad_mode };
  Kind kind = Kind::call;
  std::optional<c10::OperatorHandle> op{};
  SizeOperator size_operator{};
  std::vector<c10::IValue> arguments{};  ///< constants, and empty places for fills
  std::vector<DynamicArgument> dynamic_arguments{};
  std::vector<ResultSlots> result_slots{};
  std::int32_t module = 0;        ///< the module whose mode applies
  bool only_in_training = false;  ///< true for a batch counter
  std::vector<std::shared_ptr<const Plan>> graphs{};
  std::vector<Operand> operands{};  ///< of the graphs
  std::uint32_t node = 0;           ///< for messages
};

struct Plan {
  std::uint32_t slots = 0;
  std::uint32_t inputs = 0;  ///< these slots come first
  std::vector<Step> steps{};
  std::vector<Operand> outputs{};
  std::vector<std::string> names{};  ///< of the nodes
};

}  // namespace tutti::exported
