#include "exported/node_rules.h"

#include "exported/values.h"
#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

constexpr std::string_view prefix = "torch.ops.";

const Argument* input_of(const Node& node, const std::string& name) {
  for (const NamedArgument& input : node.inputs) {
    if (input.name == name) return &input.value;
  }
  return nullptr;
}

// Returns true for dropout with probability 0, which nn.LSTM with one layer has.
bool drops_nothing(const Node& node) {
  for (const char* name : {"p", "dropout"}) {
    const Argument* rate = input_of(node, name);
    if (rate != nullptr && rate->kind == Argument::Kind::number && rate->number == 0) return true;
  }
  return false;
}

}  // namespace

std::string operator_name(const std::string& target) {
  if (!target.starts_with(prefix)) return target;
  const std::string name = target.substr(prefix.size());
  const auto first = name.find('.'), last = name.rfind('.');
  if (first == std::string::npos) return target;
  if (first == last) return name.substr(0, first) + "::" + name.substr(first + 1);
  const std::string overload = name.substr(last + 1);
  return name.substr(0, first) + "::" + name.substr(first + 1, last - first - 1) +
         (overload == "default" ? "" : "." + overload);
}

std::optional<c10::OperatorHandle> find_operator(const std::string& target) {
  const std::string name = operator_name(target);
  if (name == target) return std::nullopt;
  const auto colons = name.find("::");
  const auto dot = name.find('.', colons);
  const c10::OperatorName wanted(name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1));
  // The only operator of ATen that opens files, with all its overloads.
  if (wanted.name == "aten::from_file") return std::nullopt;
  return c10::Dispatcher::singleton().findSchema(wanted);
}

bool is_check_of_the_export(const std::string& target) {
  return target == "torch.ops.aten._assert_tensor_metadata.default";
}

bool is_batch_counter(const std::string& buffer) {
  return buffer == "num_batches_tracked" || buffer.ends_with(".num_batches_tracked");
}

bool is_batch_norm(const Node& node) {
  return node.target.find("batch_norm") != std::string::npos;
}

ModeRule mode_rule(const Node& node, const std::string& argument, const c10::IValue& constant) {
  if (argument == "dropout_p" && constant.isDouble() && constant.toDouble() > 0) return {.evaluation = 0.0};
  const bool uses_statistics = argument == "use_input_stats";
  if (!constant.isBool() || (argument != "train" && argument != "training" && !uses_statistics)) return {};
  const Argument* mean = input_of(node, "running_mean");
  const bool has_statistics = mean != nullptr && mean->kind == Argument::Kind::name;
  if (!constant.toBool()) return {.evaluation = {}, .eval_only = !drops_nothing(node)};
  // Normalization without running statistics uses the batch's statistics in evaluation too.
  const bool normalizes = uses_statistics || input_of(node, "running_mean") != nullptr;
  if (normalizes && !has_statistics) return {};
  return {.evaluation = false};
}

void check_autocast(const Node& node, const std::vector<c10::IValue>& arguments) {
  const bool has_dtype = node.inputs[1].value.kind == Argument::Kind::scalar_type;
  if (!arguments[0].isString() || !(arguments[1].isNone() || has_dtype) || !arguments[2].isBool() ||
      !(arguments[3].isNone() || arguments[3].isBool())) {
    throw CheckpointError("the arguments of autocast are not a device, a dtype and two switches");
  }
  device_of({.type = arguments[0].toStringRef(), .index = {}});
}

}  // namespace tutti::exported
