#pragma once
// Rules for single operators: names, training mode, autocast.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

#include "exported/program.h"

namespace tutti::exported {

/// Returns "aten::add.Tensor" for "torch.ops.aten.add.Tensor". Returns a target that is not a LibTorch operator
/// unchanged.
std::string operator_name(const std::string& target);
/// Returns nullopt if the operator is not registered, or if it accesses files.
std::optional<c10::OperatorHandle> find_operator(const std::string& target);

/// Returns true for a node that asserts the dtype and device of a value at export. tutti skips it, because to() changes
/// them.
bool is_check_of_the_export(const std::string& target);

/// Returns true if `buffer` is the name of batch norm's batch counter.
bool is_batch_counter(const std::string& buffer);

/// Returns true for batch norm, also decomposed to native_batch_norm and others of its family.
bool is_batch_norm(const Node& node);

/// How an argument depends on the mode. A graph has the mode of the export as a constant.
struct ModeRule {
  std::optional<c10::IValue> evaluation{};  ///< the argument's value in evaluation
  bool eval_only = false;                   ///< exported in eval mode, so train() has no effect on it
};
ModeRule mode_rule(const Node& node, const std::string& argument, const c10::IValue& constant);

/// Throws CheckpointError unless `arguments`, the constants with which the inputs of `node` begin, are autocast's
/// device, dtype, switch and cache switch.
void check_autocast(const Node& node, const std::vector<c10::IValue>& arguments);

}  // namespace tutti::exported
