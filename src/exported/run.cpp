#include "exported/run.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "exported/cond_gradients.h"
#include "exported/node_rules.h"
#include "exported/size_operators.h"
#include "exported/values.h"
#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

/// The scope of torch.autocast in a program.
class Autocast {
 public:
  Autocast(const std::vector<c10::IValue>& arguments, const RunState& state)
      : device_(c10::Device(arguments[0].toStringRef()).type()), cache_(at::autocast::is_autocast_cache_enabled()) {
    if (device_ == state.export_device.type()) device_ = state.device.type();
    if (!at::autocast::is_autocast_available(device_)) {
      throw UsageError("the program uses autocast for " + c10::DeviceTypeName(device_, true) +
                       ", which this LibTorch does not support");
    }
    enabled_ = at::autocast::is_autocast_enabled(device_);
    dtype_ = at::autocast::get_autocast_dtype(device_);
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(device_, arguments[2].toBool());
    if (arguments[1].isInt()) {
      at::autocast::set_autocast_dtype(device_, static_cast<c10::ScalarType>(arguments[1].toInt()));
    }
    if (arguments[3].isBool()) at::autocast::set_autocast_cache_enabled(arguments[3].toBool());
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_);
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool cache_;
  bool enabled_ = false;
  c10::ScalarType dtype_ = c10::kFloat;
};

class Interpreter {
 public:
  Interpreter(const Plan& plan, std::vector<c10::IValue> inputs, const RunState& state)
      : plan_(plan), frame_(std::move(inputs)), state_(state) {
    frame_.resize(plan.slots);
  }

  std::vector<c10::IValue> run() {
    for (const Step& step : plan_.steps) {
      try {
        run(step);
      } catch (c10::Error& error) {
        error.add_context("in node " + std::to_string(step.node) + " of the exported program, " +
                          plan_.names[step.node]);
        throw;
      }
    }
    std::vector<c10::IValue> outputs;
    outputs.reserve(plan_.outputs.size());
    for (const Operand& item : plan_.outputs) outputs.push_back(take(item));
    return outputs;
  }

 private:
  // The last read moves the value out of its slot, so it is freed as soon as possible.
  c10::IValue take(const Operand& item) {
    if (item.slot < 0) return item.constant;
    c10::IValue& value = frame_[static_cast<std::size_t>(item.slot)];
    if (item.last) return std::move(value);
    return value;
  }

  void run(const Step& step) {
    switch (step.kind) {
      case Step::Kind::call:
        call(step);
        return;
      case Step::Kind::size: {
        stack_.clear();
        for (const Operand& item : step.operands) stack_.push_back(take(item));
        c10::IValue result = apply_size_operator(step.size_operator, stack_);
        stack_.assign(1, std::move(result));
        store(step);
        return;
      }
      case Step::Kind::cond: {
        const c10::IValue condition = take(step.operands.front());
        const bool chosen = condition.isTensor() ? condition.toTensor().item<bool>() : condition.toBool();
        std::vector<c10::IValue> inputs = take_from(step, 1);
        const std::vector<at::Tensor> operands = operands_with_gradients(inputs);
        std::vector<c10::IValue> results = Interpreter(*step.graphs[chosen ? 0 : 1], std::move(inputs), state_).run();
        reach_operands(results, operands);
        store_results(step, std::move(results));
        return;
      }
      case Step::Kind::autocast: {
        const Autocast scope(step.arguments, state_);
        run_graph(step);
        return;
      }
      case Step::Kind::grad_mode: {
        const at::AutoGradMode scope(step.arguments.front().toBool());
        run_graph(step);
        return;
      }
    }
  }

  bool in_training(const Step& step) const { return state_.training[static_cast<std::size_t>(step.module)] != 0; }

  // As PyTorch's BatchNorm does in Python. Without it the running variance becomes NaN.
  void require_several_values(const Step& step) const {
    if (step.by_batch_statistics < 0 || !stack_[static_cast<std::size_t>(step.by_batch_statistics)].toBool()) return;
    const at::Tensor& input = stack_.front().toTensor();
    if (input.dim() < 2 || input.numel() != input.size(1)) return;
    throw UsageError("batch norm in training needs more than one value per channel, but its input has the shape " +
                     c10::str(input.sizes()) + ". Use larger batches, or drop_last. (" + plan_.names[step.node] + ")");
  }

  void call(const Step& step) {
    stack_.assign(step.arguments.begin(), step.arguments.end());
    for (const DynamicArgument& dynamic_argument : step.dynamic_arguments)
      stack_[dynamic_argument.position] = make_argument(dynamic_argument, step);
    if (step.only_in_training && !in_training(step)) {
      // The operator works in place, so its result is the first argument.
      stack_.resize(1);
    } else {
      require_several_values(step);
      step.op->callBoxed(stack_);
    }
    store(step);
  }

  c10::IValue make_argument(const DynamicArgument& dynamic_argument, const Step& step) {
    switch (dynamic_argument.conversion) {
      case Conversion::value:
        return take(dynamic_argument.items.front());
      case Conversion::wrapped_number: {
        c10::IValue value = take(dynamic_argument.items.front());
        return value.isTensor() ? value : wrapped_number(value);
      }
      case Conversion::floating: {
        c10::IValue value = take(dynamic_argument.items.front());
        return value.isDouble() ? value : value.toScalar().toDouble();
      }
      case Conversion::mode:
        return in_training(step) ? dynamic_argument.items.front().constant : dynamic_argument.evaluation;
      case Conversion::device: {
        const c10::IValue& exported_value = dynamic_argument.items.front().constant;
        return exported_value.toDevice().type() == state_.export_device.type() ? state_.device
                                                                               : exported_value.toDevice();
      }
      case Conversion::scalar_type: {
        const c10::IValue& exported_value = dynamic_argument.items.front().constant;
        const bool is_export_dtype =
            state_.export_dtype && exported_value.toInt() == static_cast<std::int64_t>(*state_.export_dtype);
        return is_export_dtype ? static_cast<std::int64_t>(state_.dtype) : exported_value.toInt();
      }
      case Conversion::integers:
        return list<std::int64_t>(dynamic_argument, [](const c10::IValue& value) { return value.toInt(); });
      case Conversion::floats:
        return list<double>(dynamic_argument, [](const c10::IValue& value) { return value.toScalar().toDouble(); });
      case Conversion::booleans:
        return list<bool>(dynamic_argument, [](const c10::IValue& value) { return value.toBool(); });
      case Conversion::numbers: {
        c10::impl::GenericList numbers(c10::NumberType::get());
        for (const Operand& item : dynamic_argument.items) numbers.push_back(take(item));
        return numbers;
      }
      case Conversion::tensors:
        return list<at::Tensor>(dynamic_argument, [](c10::IValue value) { return std::move(value).toTensor(); });
      case Conversion::optional_tensors:
        return list<std::optional<at::Tensor>>(dynamic_argument, [](c10::IValue value) -> std::optional<at::Tensor> {
          if (value.isNone()) return std::nullopt;
          return std::move(value).toTensor();
        });
    }
    return {};
  }

  template <typename Element, typename Convert>
  c10::IValue list(const DynamicArgument& dynamic_argument, Convert convert) {
    c10::List<Element> elements;
    elements.reserve(dynamic_argument.items.size());
    for (const Operand& item : dynamic_argument.items) elements.push_back(convert(take(item)));
    return elements;
  }

  // Moves the results of the operator from the stack into the frame.
  void store(const Step& step) {
    for (std::size_t i = 0; i < step.result_slots.size(); ++i) {
      const ResultSlots& target = step.result_slots[i];
      if (target.kind == ResultSlots::Kind::ignored) continue;
      if (target.kind == ResultSlots::Kind::list) {
        store_list(target, stack_[i]);
        continue;
      }
      c10::IValue& slot = frame_[static_cast<std::size_t>(target.slots.front())];
      slot = std::move(stack_[i]);
      if (target.kind == ResultSlots::Kind::number && slot.isSymInt())
        slot = slot.toSymInt().guard_int(__FILE__, __LINE__);
    }
    stack_.clear();
  }

  void store_list(const ResultSlots& target, const c10::IValue& values) {
    const auto list = values.toListRef();
    if (list.size() != target.slots.size()) {
      throw UsageError("an operator returned " + std::to_string(list.size()) +
                       " tensors, but the program was exported for " + std::to_string(target.slots.size()) +
                       ": the sizes of the inputs do not fit the program");
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (target.slots[i] >= 0) frame_[static_cast<std::size_t>(target.slots[i])] = list[i];
    }
  }

  void run_graph(const Step& step) {
    store_results(step, Interpreter(*step.graphs.front(), take_from(step, 0), state_).run());
  }

  /// The operands from number `first` on.
  std::vector<c10::IValue> take_from(const Step& step, std::size_t first) {
    std::vector<c10::IValue> values;
    values.reserve(step.operands.size());
    for (std::size_t i = first; i < step.operands.size(); ++i) values.push_back(take(step.operands[i]));
    return values;
  }

  // Moves the results of a graph into the frame.
  void store_results(const Step& step, std::vector<c10::IValue> results) {
    std::size_t next = 0;
    for (const ResultSlots& target : step.result_slots) {
      for (const std::int32_t slot : target.slots) {
        if (slot >= 0) frame_[static_cast<std::size_t>(slot)] = std::move(results[next]);
        ++next;
      }
    }
  }

  const Plan& plan_;
  std::vector<c10::IValue> frame_;
  std::vector<c10::IValue> stack_{};
  const RunState& state_;
};

}  // namespace

std::vector<c10::IValue> run(const Plan& plan, std::vector<c10::IValue> inputs, const RunState& state) {
  return Interpreter(plan, std::move(inputs), state).run();
}

}  // namespace tutti::exported
