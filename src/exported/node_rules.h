#pragma once
// What single operators need besides being called.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

#include "exported/program.h"

namespace tutti::exported {

/// "aten::add.Tensor" for "torch.ops.aten.add.Tensor"; what is no operator of LibTorch's stays as it is.
std::string operator_name(const std::string& target);
/// nullopt where there is none, and for those that reach outside the process.
std::optional<c10::OperatorHandle> find_operator(const std::string& target);

/// Asserts what was true while the program was traced: dtype and device of a value, which may be others here.
bool is_check_of_the_export(const std::string& target);

/// Whether a buffer is batch norm's count of batches.
bool is_batch_counter(const std::string& buffer);

/// Training or evaluation is written into a graph as a constant.
struct ModeRule {
  std::optional<c10::IValue> evaluation{};  ///< what the argument is in evaluation
  bool eval_only = false;                   ///< exported in eval mode: it does not do in training what its module would
};
ModeRule mode_rule(const Node& node, const std::string& argument, const c10::IValue& constant);

/// Throws CheckpointError where autocast's device, dtype and switches are something else.
void check_autocast(const std::vector<c10::IValue>& arguments);

}  // namespace tutti::exported
