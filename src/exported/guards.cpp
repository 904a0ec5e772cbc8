#include "exported/guards.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "exported/checked_math.h"
#include "exported/values.h"
#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

[[noreturn]] void reject_size(const std::string& name, std::optional<std::size_t> dimension, std::int64_t value,
                              const std::string& spec) {
  const std::string place = dimension ? "dimension " + std::to_string(*dimension) + " of " : "";
  throw UsageError(place + "input " + name + " is " + std::to_string(value) + ", but the program was exported for " +
                   spec + ": pass such a size, or export the model with this dimension dynamic");
}

// Returns the name of a size in conditions: "L['batch']['x'].size()[0]".
std::string place_of(const std::string& name, std::size_t dimension) {
  const auto bracket = std::min(name.find('['), name.size());
  return "L['" + name.substr(0, bracket) + "']" + name.substr(bracket) + ".size()[" + std::to_string(dimension) + "]";
}

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (a.isDouble() && b.isDouble() && a.toDouble() != a.toDouble()) return b.toDouble() != b.toDouble();
  if ((a.isInt() || a.isDouble()) && (b.isInt() || b.isDouble()))
    return a.toScalar().toDouble() == b.toScalar().toDouble();
  if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
  if (a.isString() && b.isString()) return a.toStringRef() == b.toStringRef();
  return a.isNone() && b.isNone();
}

std::string shown(const c10::IValue& value) {
  if (value.isString()) return "'" + value.toStringRef() + "'";
  if (value.isNone()) return "None";
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) return std::to_string(value.toInt());
  return value.isDouble() ? std::to_string(value.toDouble()) : "a " + value.tagKind();
}

// `symbol_values` must outlive the result.
Expression::Lookup lookup_in(const std::map<std::string, std::int64_t>& symbol_values) {
  return [&](const std::string& name) -> std::optional<std::int64_t> {
    const auto found = symbol_values.find(name);
    if (found != symbol_values.end()) return found->second;
    return std::nullopt;
  };
}

}  // namespace

Guards::Guards(const Program& program, const std::vector<std::string>& names) : ranges_(program.ranges) {
  std::size_t next = 0;
  for (const Input& input : program.inputs) {
    if (input.kind != Input::Kind::user && input.kind != Input::Kind::fixed) continue;
    if (next == names.size()) break;
    InputSpec spec{.name = names[next++], .kind = input.kind};
    if (input.kind == Input::Kind::fixed) {
      spec.fixed = compile_item(input.value, {}).constant;
    } else if (input.value.of_size) {
      const auto size = program.graph.sizes.find(input.value.text);
      if (size != program.graph.sizes.end()) spec.number = size_of(size->second);
    } else {
      const auto meta = program.graph.tensors.find(input.value.text);
      if (meta == program.graph.tensors.end()) throw CheckpointError("input " + spec.name + " has no description");
      for (const SymInt& size : meta->second.sizes) spec.sizes.push_back(size_of(size));
    }
    specs_.push_back(std::move(spec));
  }
  for (const std::string& guard : program.guards) add_condition(guard);
}

void Guards::add_condition(const std::string& text) {
  try {
    Condition condition{.text = text, .expression = Expression::parse(text)};
    for (const std::string& name : condition.expression.names()) {
      if (!is_known(name)) throw CheckpointError(name + " is unknown");
    }
    conditions_.push_back(std::move(condition));
  } catch (const CheckpointError&) {
    unchecked_.push_back(text);
  }
}

std::vector<std::string> Guards::conditions() const {
  std::vector<std::string> texts;
  for (const Condition& condition : conditions_) texts.push_back(condition.text);
  return texts;
}

// Returns true if check() finds a value of the name.
bool Guards::is_known(const std::string& name) const {
  for (const InputSpec& spec : specs_) {
    for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
      const auto& expression = spec.sizes[d].expression;
      if (name == place_of(spec.name, d) || (expression && expression->names().contains(name))) return true;
    }
    if (spec.number && spec.number->expression && spec.number->expression->names().contains(name)) return true;
  }
  return false;
}

Guards::Size Guards::size_of(const SymInt& size) {
  if (size.expression.empty()) return {.expression = {}, .number = size.value};
  return {.expression = Expression::parse(size.expression), .number = size.value};
}

void Guards::check(std::span<const c10::IValue> inputs) const {
  SymbolValues symbol_values;
  // The first pass finds the values of symbols, the second one checks expressions of them.
  for (const bool symbols : {true, false}) {
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const InputSpec& spec = specs_[i];
      const c10::IValue& input = inputs[i];
      if (spec.kind == Input::Kind::fixed) {
        if (same_value(input, spec.fixed)) continue;
        throw UsageError("input " + spec.name + " is " + shown(input) + ", but the program was exported with " +
                         shown(spec.fixed) + ": pass that value, or export the model with the new one");
      }
      if (spec.number) {
        if (!input.isInt()) throw UsageError("input " + spec.name + " is " + shown(input) + ", not an integer");
        check_size(*spec.number, input.toInt(), spec, std::nullopt, symbol_values, symbols);
        continue;
      }
      if (!input.isTensor()) throw UsageError("input " + spec.name + " is " + shown(input) + ", not a tensor");
      if (!input.toTensor().defined()) throw UsageError("input " + spec.name + " is an undefined tensor");
      const at::Tensor& tensor = input.toTensor();
      if (tensor.dim() != static_cast<std::int64_t>(spec.sizes.size())) {
        throw UsageError("input " + spec.name + " has " + std::to_string(tensor.dim()) +
                         " dimensions, but the program was exported for " + std::to_string(spec.sizes.size()));
      }
      for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
        const std::int64_t size = tensor.size(static_cast<std::int64_t>(d));
        check_size(spec.sizes[d], size, spec, d, symbol_values, symbols);
        if (symbols && !conditions_.empty()) symbol_values.emplace(place_of(spec.name, d), size);
      }
    }
  }
  const auto lookup = lookup_in(symbol_values);
  for (const Condition& condition : conditions_) {
    if (condition.expression.evaluate(lookup) == 0) {
      throw UsageError("the sizes of the inputs violate a condition of the exported program: " + condition.text);
    }
  }
}

void Guards::check_size(const Size& size, std::int64_t value, const InputSpec& spec,
                        std::optional<std::size_t> dimension, SymbolValues& symbol_values, bool symbols) const {
  if (!size.expression) {
    if (symbols && value != size.number) reject_size(spec.name, dimension, value, std::to_string(size.number));
    return;
  }
  const Expression& expression = *size.expression;
  if (expression.is_name() != symbols) return;
  const auto names = expression.names();
  if (expression.is_name()) {
    const auto [symbol, is_new] = symbol_values.emplace(*names.begin(), value);
    if (is_new) check_range(symbol->first, value, value, spec, dimension);
    if (symbol->second != value) {
      reject_size(spec.name, dimension, value,
                  std::to_string(symbol->second) + ", as in another dimension of the inputs");
    }
    return;
  }
  if (const auto right = expression.evaluate(lookup_in(symbol_values))) {
    if (*right != value)
      reject_size(spec.name, dimension, value,
                  std::to_string(*right) + ", which the other dimensions of the inputs imply");
    return;
  }
  // Solves a * s + b = value for a symbol s without a known value.
  if (names.size() != 1) return;
  const auto at_s = [&](std::int64_t s) {
    return expression.evaluate([s](const std::string&) { return std::optional(s); });
  };
  const auto at_1 = at_s(1), at_2 = at_s(2), at_3 = at_s(3);
  if (!at_1 || !at_2 || !at_3 || *at_1 == *at_2) return;
  const std::int64_t slope = checked_math::subtract(*at_2, *at_1), base = checked_math::subtract(*at_1, slope);
  if (checked_math::subtract(*at_3, *at_2) != slope) return;
  const std::int64_t rise = checked_math::subtract(value, base);
  if (checked_math::modulo(rise, slope) != 0) {
    reject_size(spec.name, dimension, value,
                "a multiple of " + std::to_string(slope) + " plus " + std::to_string(base));
  }
  const std::int64_t solved = checked_math::floor_divide(rise, slope);
  symbol_values.emplace(*names.begin(), solved);
  check_range(*names.begin(), solved, value, spec, dimension);
}

void Guards::check_range(const std::string& symbol, std::int64_t value, std::int64_t size, const InputSpec& spec,
                         std::optional<std::size_t> dimension) const {
  const auto found = ranges_.find(symbol);
  if (found == ranges_.end()) return;
  const Range& range = found->second;
  // A minimum of 2 is no condition: torch.export writes it because it treats sizes 0 and 1 as constants.
  const bool enough = !range.min || *range.min <= 2 || value >= *range.min;
  if (enough && (!range.max || value <= *range.max)) return;
  const std::string least = range.min ? "at least " + std::to_string(*range.min) : "";
  const std::string most = range.max ? "at most " + std::to_string(*range.max) : "";
  const std::string bounds = least + (least.empty() || most.empty() ? "" : " and ") + most;
  reject_size(spec.name, dimension, size,
              value == size ? bounds : symbol + " of " + bounds + " (" + symbol + " is " + std::to_string(value) + ")");
}

}  // namespace tutti::exported
