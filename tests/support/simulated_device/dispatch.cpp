// A call has three parts:
// 1. LibTorch's meta kernel (or a rehearsal on zeros) computes the shapes of the results. This also checks the
// arguments.
// 2. The results are allocated on the device.
// 3. The CPU's kernel is queued on the current stream, with aliases of the device's memory. The host continues.
#include "support/simulated_device/dispatch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "support/simulated_device/generator.h"
#include "support/simulated_device/kernel_tensors.h"
#include "support/simulated_device/runtime.h"

namespace tutti::test::simulated {
namespace {

using torch::jit::Stack;

Stack run(const c10::OperatorHandle& op, const Stack& arguments, c10::DispatchKey key) {
  const BelowAutograd below;
  Stack stack = arguments;
  op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
  return stack;
}

/// True if the results, or their shapes, depend on the values of tensors. With a GPU too the host waits for them.
bool depends_on_data(const std::string& name) {
  static const std::set<std::string, std::less<>> names{
      "aten::nonzero",           "aten::masked_select", "aten::_unique2",
      "aten::unique_dim",        "aten::equal",         "aten::unique_consecutive",
      "aten::repeat_interleave", "aten::bincount",      "aten::_local_scalar_dense",
      "aten::is_nonzero",        "aten::_linalg_eigh",  "aten::histc"};
  return names.contains(name);
}

/// True for a mask as an index: its number of values is the size of the result.
bool has_mask(const c10::IValue& value) {
  bool found = false;
  for_each_tensor(value, [&](const at::Tensor& index) {
    found = found || index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
  });
  return found;
}

/// True for operators that take index tensors of the host.
bool takes_host_tensors(std::string_view name) {
  return name.starts_with("aten::index") || name.starts_with("aten::_index");
}

/// The operators that have no kernel for meta tensors.
class WithoutMeta {
 public:
  bool contains(const c10::OperatorHandle& op) {
    const std::lock_guard lock(mutex_);
    return names_.contains(op.operator_name());
  }
  void insert(const c10::OperatorHandle& op) {
    const std::lock_guard lock(mutex_);
    names_.insert(op.operator_name());
  }

 private:
  std::mutex mutex_;
  std::unordered_set<c10::OperatorName> names_;
};

class OperatorCall {
 public:
  OperatorCall(const c10::OperatorHandle& op, Stack arguments)
      : op_(op), schema_(op.schema()), arguments_(std::move(arguments)), device_(device_of_arguments()) {
    check_devices();
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_generator(i)) continue;
      const auto given = arguments_[i].isGenerator() ? std::optional(arguments_[i].toGenerator()) : std::nullopt;
      generator_ = generator_for_one_kernel(given, device_.index());
    }
  }

  Stack operator()() {
    const c10::DeviceGuard guard(device_);
    const bool is_index_with_mask = schema_.name() == "aten::index" && has_mask(arguments_.at(1));
    if (depends_on_data(schema_.name()) || is_index_with_mask) return run_and_wait();
    Stack results;
    std::vector<Copy> copies;
    if (makes_tensors()) {
      const auto [arguments, shapes] = rehearse();
      copies = output_copies(arguments);
      for (std::size_t i = 0; i < shapes.size(); ++i) results.push_back(allocate_result(i, shapes[i], copies));
    }
    launch(current_stream(device_.index()),
           [op = op_, arguments = translated(Purpose::kernel), copies = std::move(copies)] {
             const Stack made = run(op, arguments, c10::DispatchKey::CPU);
             const BelowAutograd below;
             for (const Copy& copy : copies) copy.write(arguments, made);
           });
    return results;
  }

 private:
  /// What the kernel computes in memory of its own, and where it belongs.
  struct Copy {
    bool is_result = false;  // else an output argument
    std::size_t index = 0;
    std::vector<at::Tensor> to;

    void write(const Stack& arguments, const Stack& results) const {
      const c10::IValue& from = is_result ? results[index] : arguments[index];
      std::size_t next = 0;
      for_each_tensor(from, [&](const at::Tensor& tensor) { to[next++].copy_(tensor); });
    }
  };

  c10::Device device_of_arguments() const {
    std::optional<c10::Device> device;
    for (const c10::IValue& value : arguments_) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (!device && is_on_device(tensor)) device = tensor.device();
      });
      if (!device && value.isDevice() && value.toDevice().has_index()) device = value.toDevice();
    }
    return device.value_or(c10::Device(type, static_cast<c10::DeviceIndex>(current_device())));
  }

  void check_devices() const {
    if (takes_host_tensors(schema_.name())) return;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const auto* const alias = schema_.arguments()[i].alias_info();
      const bool is_written = alias != nullptr && alias->isWrite();
      for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) {
        const bool is_number_of_host = tensor.is_cpu() && tensor.dim() == 0 && !is_written;
        TORCH_CHECK(tensor.device() == device_ || is_number_of_host, "sim: expected all tensors on ", device_,
                    ", found a tensor of sizes ", tensor.sizes(), " on ", tensor.device(), " in ", schema_.name());
      });
    }
  }

  bool is_generator(std::size_t argument) const { return schema_.arguments()[argument].name() == "generator"; }

  /// True for an `out` argument. Kernels may resize it, which the device's memory cannot be on a stream: they get an
  /// empty tensor, and the result is copied.
  bool is_output(std::size_t argument) const {
    const auto* const alias = schema_.arguments()[argument].alias_info();
    return schema_.arguments()[argument].kwarg_only() && alias != nullptr && alias->isWrite() &&
           arguments_[argument].isTensor();
  }

  bool is_written_argument(std::size_t result) const {
    const auto* const alias = schema_.returns()[result].alias_info();
    return alias != nullptr && alias->isWrite();
  }

  /// The argument that a result is, or is a view of; undefined for others.
  c10::IValue aliased_argument(std::size_t result) const {
    const auto* const alias = schema_.returns()[result].alias_info();
    if (alias == nullptr) return {};
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const auto* const candidate = schema_.arguments()[i].alias_info();
      if (candidate != nullptr && candidate->beforeSets() == alias->beforeSets()) return arguments_[i];
    }
    return {};
  }

  /// False for an operator on lists that works in place: it needs no shapes.
  bool makes_tensors() const {
    if (!schema_.returns().empty()) return true;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (is_output(i)) return true;
    }
    return false;
  }

  Stack translated(Purpose purpose) const {
    ArgumentTranslator translate(purpose);
    Stack result;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (is_generator(i)) {
        result.emplace_back(generator_);
      } else if (is_output(i)) {
        result.emplace_back(at::empty({0}, arguments_[i].toTensor().options().device(translate.device())));
      } else {
        result.push_back(translate(arguments_[i]));
      }
    }
    return result;
  }

  /// The arguments of a call without data, and its results.
  std::pair<Stack, Stack> rehearse() const {
    static auto* const without_meta = new WithoutMeta;
    if (!without_meta->contains(op_)) {
      try {
        const Stack arguments = translated(Purpose::shapes);
        return {arguments, run(op_, arguments, c10::DispatchKey::Meta)};
      } catch (const c10::NotImplementedError&) {
        without_meta->insert(op_);
      }
    }
    const Stack arguments = translated(Purpose::rehearsal);
    return {arguments, run(op_, arguments, c10::DispatchKey::CPU)};
  }

  std::vector<Copy> output_copies(const Stack& rehearsed) const {
    std::vector<Copy> copies;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_output(i)) continue;
      const at::Tensor& output = arguments_[i].toTensor();
      const at::IntArrayRef sizes = rehearsed[i].toTensor().sizes();
      if (output.sizes() != sizes) output.resize_(sizes);
      copies.push_back({.index = i, .to = {alias_for_kernels(output)}});
    }
    return copies;
  }

  at::Tensor allocated_like(const at::Tensor& shape) const {
    if (!shape.defined()) return {};
    return at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(device_));
  }

  c10::IValue allocate_result(std::size_t index, const c10::IValue& shape, std::vector<Copy>& copies) const {
    const c10::IValue argument = aliased_argument(index);
    if (is_written_argument(index)) return argument;
    if (argument.isTensor() && shape.isTensor()) {
      const at::Tensor& base = argument.toTensor();
      const at::Tensor& view = shape.toTensor();
      return base.as_strided(view.sizes(), view.strides(), base.storage_offset() + view.storage_offset());
    }
    Copy copy{.is_result = true, .index = index, .to = {}};
    c10::IValue result = shape;
    if (shape.isTensor()) {
      result = allocated_like(shape.toTensor());
    } else if (shape.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : shape.toTensorVector()) list.push_back(allocated_like(tensor));
      result = list;
    }
    for_each_tensor(result, [&](const at::Tensor& tensor) { copy.to.push_back(alias_for_kernels(tensor)); });
    if (!copy.to.empty()) copies.push_back(std::move(copy));
    return result;
  }

  Stack run_and_wait() const {
    count(&Counts::data_dependent);
    wait_for(current_stream(device_.index()), schema_.name());
    const Stack arguments = translated(Purpose::kernel);
    const Stack made = run(op_, arguments, c10::DispatchKey::CPU);
    const BelowAutograd below;
    for (const Copy& copy : output_copies(arguments)) copy.write(arguments, made);
    Stack results;
    for (std::size_t i = 0; i < made.size(); ++i) {
      std::vector<Copy> copies;
      results.push_back(allocate_result(i, made[i], copies));
      for (const Copy& copy : copies) copy.write(arguments, made);
    }
    return results;
  }

  const c10::OperatorHandle op_;
  const c10::FunctionSchema& schema_;
  const Stack arguments_;
  const c10::Device device_;
  at::Generator generator_;
};

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  run_operator(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

bool are_lists_on_one_device(const c10::OperatorHandle& op, const Stack& stack) {
  std::set<std::string> devices;
  for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    if (!stack[i].isTensorList()) continue;
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) { devices.insert(tensor.device().str()); });
  }
  return devices.size() <= 1;
}

/// For operators on lists of tensors. A GPU runs each as one kernel, unless its tensors are on several devices.
/// LibTorch's composite kernels would run them tensor by tensor.
void list_operator(const c10::OperatorHandle& op, Stack* stack) {
  if (are_lists_on_one_device(op, *stack)) return run_operator(op, stack);
  constexpr auto composite = c10::DispatchKey::PrivateUse2;  // a key without kernels of its own
  op.redispatchBoxed(c10::DispatchKeySet(composite), stack);
}

bool is_list_operator(std::string_view name) {
  const bool is_fused_step = name.starts_with("aten::_fused_") && name.ends_with("_");
  return name.starts_with("aten::_foreach_") || is_fused_step;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!is_list_operator(name.name)) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&list_operator>());
  }
}

}  // namespace

void run_operator(const c10::OperatorHandle& op, Stack* stack) {
  const auto count = op.schema().arguments().size();
  Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : OperatorCall(op, std::move(arguments))()) stack->push_back(std::move(result));
}

}  // namespace tutti::test::simulated
