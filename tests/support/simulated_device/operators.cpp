// LibTorch's operators on the simulated device. Nearly all of them are one boxed function: it learns the shapes of the
// results from LibTorch's meta device (or from a rehearsal on zeros), allocates them, and launches the CPU's kernel on
// the current stream. The host has gone on long before it runs, as on a GPU.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GeneratorImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "support/simulated_device/runtime.h"
#include "support/simulated_device/simulated_device.h"

namespace tutti::test::simulated {
namespace {

using torch::jit::Stack;

c10::Device device_at(int index) {
  return {type, static_cast<c10::DeviceIndex>(index)};
}
bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone();
}

// ---- Random numbers. A generator is a seed and a counter, as on a GPU: a launch takes a number, and its kernel draws
// from a generator of its own, so that the order in which streams run changes nothing.

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex index)
      : c10::GeneratorImpl(c10::Device(type, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(std::uint64_t seed) override { seed_ = seed, offset_ = 0; }
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 16 && state.dtype() == caffe2::TypeMeta::Make<std::uint8_t>(), "no state of sim's");
    const auto* bytes = static_cast<const std::byte*>(state.data());
    std::memcpy(&seed_, bytes, 8);
    std::memcpy(&offset_, bytes + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state = at::empty({16}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), &seed_, 8);
    std::memcpy(static_cast<std::byte*>(state.mutable_data_ptr()) + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }
  at::Generator for_one_kernel() { return at::make_generator<at::CPUGeneratorImpl>(seed_ * 1000003 + offset_++); }

 private:
  Generator* clone_impl() const override {
    auto* const copy = new Generator(device_.index());
    copy->seed_ = seed_, copy->offset_ = offset_;
    return copy;
  }
  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::uint64_t offset_ = 0;
};

at::Generator& default_generator(int device) {
  static auto* const all = [] {
    auto* const made = new std::vector<at::Generator>;
    for (int i = 0; i < most_devices; ++i)
      made->push_back(at::make_generator<Generator>(static_cast<c10::DeviceIndex>(i)));
    return made;
  }();
  return all->at(static_cast<std::size_t>(device));
}

at::Generator for_one_kernel(std::optional<at::Generator> generator, int device) {
  at::Generator own = generator && generator->defined() ? *generator : default_generator(device);
  const std::lock_guard lock(own.mutex());
  return own.get<Generator>()->for_one_kernel();
}

// ---- Pinned memory.

std::mutex pinned_mutex;
std::set<const void*> pinned;

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = std::aligned_alloc(64, (bytes + 127) / 64 * 64);
    const std::lock_guard lock(pinned_mutex);
    pinned.insert(memory);
    return {memory, memory, &free_it, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_it; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void free_it(void* memory) {
    {
      const std::lock_guard lock(pinned_mutex);
      pinned.erase(memory);
    }
    std::free(memory);
  }
};

bool is_pinned_tensor(const at::Tensor& tensor) {
  const std::lock_guard lock(pinned_mutex);
  return pinned.contains(tensor.storage().data());
}

// ---- Hooks.

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(settings().devices); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const int before = current_device();
    set_current_device(device);
    return static_cast<c10::DeviceIndex>(before);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? static_cast<c10::DeviceIndex>(current_device()) : device);
  }
  at::Device getDeviceFromPtr(void* data) const override { return device_at(device_of(data)); }
  bool isPinnedPtr(const void* data) const override {
    const std::lock_guard lock(pinned_mutex);
    return pinned.contains(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedAllocator pinned_allocator;
    return &pinned_allocator;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr larger = c10::GetAllocator(type)->allocate(bytes);
    const std::size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) {
      launch(current_stream(storage.device().index()),
             [to = as_seen_by_kernels(larger.get()), from = as_seen_by_kernels(storage.data()), kept] {
               std::memcpy(to, from, kept);
             });
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(larger));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// ---- The one function for all operators.

/// A CPU tensor over memory of the device, for kernels only. It keeps nothing alive: a kernel holds a mere pointer.
at::Tensor alias_for_kernels(const at::Tensor& tensor) {
  const auto options = at::TensorOptions(tensor.scalar_type()).device(at::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  at::Tensor alias =
      at::from_blob(as_seen_by_kernels(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) alias = alias.conj();
  if (tensor.is_neg()) alias = alias._neg_view();
  return alias;
}

/// A stand-in whose layout is that of `tensor`.
at::Tensor stand_in(const at::Tensor& tensor, c10::Device device) {
  const auto options = at::TensorOptions(tensor.scalar_type()).device(device);
  std::int64_t extent = 1;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) extent += (tensor.size(i) - 1) * tensor.stride(i);
  if (tensor.numel() == 0) extent = 0;
  const at::Tensor memory = device.is_cpu() ? at::zeros({extent}, options) : at::empty({extent}, options);
  return memory.as_strided(tensor.sizes(), tensor.strides(), 0);
}

enum class As { meta, rehearsal, kernel };

/// The arguments of a call as another device takes them.
class Arguments {
 public:
  Arguments(As as, const at::Generator& generator) : as_(as), generator_(generator) {}

  c10::IValue operator()(const c10::IValue& value) {
    if (value.isTensor()) return translated(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& one : value.toTensorVector()) list.push_back(translated(one));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& one : value.toOptionalTensorVector()) {
        list.push_back(one ? std::optional(translated(*one)) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice()) return as_ == As::meta ? at::Device(at::kMeta) : at::Device(at::kCPU);
    if (value.isGenerator()) return generator_;
    return value;
  }

 private:
  at::Tensor translated(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!on_device(tensor)) {
      // A number that the host has: the launch takes it along.
      if (as_ == As::kernel) return tensor.is_cpu() && tensor.dim() == 0 ? tensor.clone() : tensor;
      return as_ == As::meta && tensor.dim() > 0 ? stand_in(tensor, at::kMeta) : tensor;
    }
    auto& known = known_[tensor.unsafeGetTensorImpl()];
    if (!known.defined()) {
      known = as_ == As::kernel ? alias_for_kernels(tensor) : stand_in(tensor, as_ == As::meta ? at::kMeta : at::kCPU);
    }
    return known;
  }

  As as_;
  at::Generator generator_;
  std::unordered_map<const at::TensorImpl*, at::Tensor> known_;
};

struct Plain {  // neither autograd nor autocast
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
};

Stack run(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments, c10::DispatchKey key) {
  const Plain plain;
  Stack stack(arguments.begin(), arguments.end());
  op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
  return stack;
}

const c10::AliasInfo* alias_of(const c10::Argument& argument) {
  return argument.alias_info();
}

/// The argument that a result is, or is a view of; -1 for none.
int argument_behind(const c10::FunctionSchema& schema, std::size_t result) {
  const auto* alias = alias_of(schema.returns()[result]);
  if (alias == nullptr) return -1;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* own = alias_of(schema.arguments()[i]);
    if (own != nullptr && own->beforeSets() == alias->beforeSets()) return static_cast<int>(i);
  }
  return -1;
}

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& action) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) action(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& one : value.toTensorVector()) action(one);
  } else if (value.isOptionalTensorList()) {
    for (const auto& one : value.toOptionalTensorVector()) {
      if (one && one->defined()) action(*one);
    }
  }
}

/// Those whose results' shapes, or results, depend on what tensors hold: on a GPU too the host waits for them.
bool must_wait(const std::string& name) {
  static const std::set<std::string> names{
      "aten::nonzero",           "aten::masked_select", "aten::_unique2",
      "aten::unique_dim",        "aten::equal",         "aten::unique_consecutive",
      "aten::repeat_interleave", "aten::bincount",      "aten::_local_scalar_dense",
      "aten::is_nonzero",        "aten::_linalg_eigh",  "aten::histc"};
  return names.contains(name);
}

/// Of an operator that stood under another name before dispatching.
void call(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const std::size_t count_of = schema.arguments().size();
  const std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count_of), stack->end());
  torch::jit::drop(*stack, count_of);

  int device = -1;
  for (const c10::IValue& value : arguments) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (device < 0 && on_device(tensor)) device = tensor.device().index();
      TORCH_CHECK(on_device(tensor) || tensor.dim() == 0 || schema.name() == "aten::index_put_" ||
                      schema.name().starts_with("aten::index") || schema.name().starts_with("aten::_index"),
                  "sim: expected all tensors on one device, found a tensor of sizes ", tensor.sizes(), " on ",
                  tensor.device(), " in ", schema.name());
    });
    if (value.isDevice() && device < 0 && value.toDevice().has_index()) device = value.toDevice().index();
  }
  if (device < 0) device = current_device();
  const c10::DeviceGuard guard(device_at(device));
  const c10::Stream stream = current_stream(device);

  // Random ones without an argument for a generator draw from the CPU's: given here is one for those that have it.
  std::optional<at::Generator> given;
  bool takes_generator = false;
  for (std::size_t i = 0; i < count_of; ++i) {
    if (schema.arguments()[i].name() != "generator") continue;
    takes_generator = true;
    if (arguments[i].isGenerator()) given = arguments[i].toGenerator();
  }
  const at::Generator generator = takes_generator ? for_one_kernel(given, device) : at::Generator();
  // Kernels may resize what they are given for their output, which the device's memory cannot be: they get an empty
  // tensor instead, and it is copied.
  const auto is_output = [&](std::size_t i) {
    const auto* alias = alias_of(schema.arguments()[i]);
    return schema.arguments()[i].kwarg_only() && alias != nullptr && alias->isWrite() && arguments[i].isTensor();
  };
  const auto translated = [&](As as) {
    Arguments translate(as, generator);
    std::vector<c10::IValue> result;
    for (std::size_t i = 0; i < count_of; ++i) {
      if (takes_generator && schema.arguments()[i].name() == "generator") {
        result.emplace_back(generator);
      } else if (is_output(i)) {
        const auto where = as == As::meta ? at::kMeta : at::kCPU;
        result.emplace_back(at::empty({0}, arguments[i].toTensor().options().device(where)));
      } else {
        result.push_back(translate(arguments[i]));
      }
    }
    return result;
  };
  const auto allocated = [&](const at::Tensor& like) {
    return like.defined() ? at::empty_strided(like.sizes(), like.strides(), like.options().device(device_at(device)))
                          : at::Tensor();
  };

  if (must_wait(schema.name())) {
    count(&Counts::unstaged);
    wait_for(stream, schema.name());
    for (const c10::IValue& result : run(op, translated(As::kernel), c10::DispatchKey::CPU)) {
      if (result.isTensor()) {
        const at::Tensor copy = allocated(result.toTensor());
        alias_for_kernels(copy).copy_(result.toTensor());
        stack->emplace_back(copy);
      } else {
        stack->push_back(result);
      }
    }
    return;
  }

  // Shapes.
  static std::mutex mutex;
  static std::unordered_set<c10::OperatorName> without_meta;
  const auto is_without = [&] {
    const std::lock_guard lock(mutex);
    return without_meta.contains(op.operator_name());
  };
  std::vector<c10::IValue> staged;
  Stack results;
  if (!is_without()) {
    try {
      staged = translated(As::meta);
      results = run(op, staged, c10::DispatchKey::Meta);
    } catch (const c10::NotImplementedError&) {
      const std::lock_guard lock(mutex);
      without_meta.insert(op.operator_name());
    }
  }
  if (is_without()) {
    staged = translated(As::rehearsal);
    results = run(op, staged, c10::DispatchKey::CPU);
  }
  std::vector<std::pair<std::size_t, at::Tensor>> outputs;
  for (std::size_t i = 0; i < count_of; ++i) {
    if (!is_output(i)) continue;
    const at::Tensor& there = arguments[i].toTensor();
    if (there.sizes() != staged[i].toTensor().sizes()) there.resize_(staged[i].toTensor().sizes());
    outputs.emplace_back(i, alias_for_kernels(there));
  }
  // Results, and where the kernel puts them.
  std::vector<std::pair<std::size_t, std::vector<at::Tensor>>> places;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const int behind = argument_behind(schema, i);
    const auto* alias = alias_of(schema.returns()[i]);
    if (behind >= 0 && alias->isWrite()) {
      stack->push_back(arguments[static_cast<std::size_t>(behind)]);
    } else if (behind >= 0 && results[i].isTensor()) {
      const at::Tensor& base = arguments[static_cast<std::size_t>(behind)].toTensor();
      const at::Tensor& view = results[i].toTensor();
      stack->emplace_back(base.as_strided(view.sizes(), view.strides(), base.storage_offset() + view.storage_offset()));
    } else if (results[i].isTensor()) {
      const at::Tensor place = allocated(results[i].toTensor());
      stack->emplace_back(place);
      if (place.defined()) places.push_back({i, {alias_for_kernels(place)}});
    } else if (results[i].isTensorList()) {
      c10::List<at::Tensor> list;
      std::vector<at::Tensor> aliases;
      for (const at::Tensor& one : results[i].toTensorVector()) {
        list.push_back(allocated(one));
        aliases.push_back(alias_for_kernels(list.get(list.size() - 1)));
      }
      stack->emplace_back(list);
      places.emplace_back(i, std::move(aliases));
    } else {
      stack->push_back(results[i]);
    }
  }
  launch(stream, [op, kernel = translated(As::kernel), places = std::move(places), outputs = std::move(outputs)] {
    const Stack made = run(op, kernel, c10::DispatchKey::CPU);
    const Plain plain;
    for (const auto& [argument, alias] : outputs) at::Tensor(alias).copy_(kernel[argument].toTensor());
    for (const auto& [result, aliases] : places) {
      if (made[result].isTensor()) {
        at::Tensor(aliases[0]).copy_(made[result].toTensor());
      } else {
        const auto list = made[result].toTensorVector();
        for (std::size_t i = 0; i < list.size(); ++i) at::Tensor(aliases[i]).copy_(list[i]);
      }
    }
  });
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  call(op, stack);
}

/// By name, for those that stand in for others.
template <typename... Values>
Stack call_named(const char* name, const char* overload, Values... values) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  Stack stack;
  (stack.emplace_back(std::move(values)), ...);
  call(op, &stack);
  return stack;
}

// ---- Those that deal in memory.

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, c10::GetAllocator(type), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}
at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(type),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}
at::Tensor& set_storage(at::Tensor& self, c10::Storage storage, std::int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(storage), offset, size, stride);
}
at::Tensor& set_whole_storage(at::Tensor& self, c10::Storage storage) {
  return at::native::set_(self, storage);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const Plain plain;
  const int device = on_device(to) ? to.device().index() : from.device().index();
  const c10::DeviceGuard guard(device_at(device));
  const c10::Stream stream = current_stream(device);
  if (on_device(from) && on_device(to)) {
    TORCH_CHECK(from.device() == to.device() || true, "");
    at::Tensor source = from;
    if (to.sizes() != from.sizes()) source = from.expand(to.sizes());
    if (from.device() != to.device()) {  // as CUDA: the other device's stream is waited for, on the device
      c10::Event ready(type);
      ready.record(current_stream(from.device().index()));
      ready.block(stream);
    }
    count(&Counts::copies_on_device);
    launch(stream, [a = alias_for_kernels(to), b = alias_for_kernels(source)] {
      const Plain below;
      at::Tensor(a).copy_(b);
    });
  } else if (on_device(to)) {
    count(&Counts::copies_to_device);
    const bool stays = non_blocking && is_pinned_tensor(from);
    // From pageable memory the driver has taken a copy when the call comes back.
    const at::Tensor source = stays ? from.detach() : from.clone();
    launch(stream, [a = alias_for_kernels(to), source] {
      const Plain below;
      at::Tensor(a).copy_(source);
    });
    if (!non_blocking) wait_for(stream, "copy from the host");
  } else {
    count(&Counts::copies_to_host);
    launch(stream, [to = to.detach(), b = alias_for_kernels(from)] {
      const Plain below;
      at::Tensor(to).copy_(b);
    });
    if (!non_blocking || !is_pinned_tensor(to)) wait_for(stream, "copy to the host");
  }
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}
at::Scalar local_scalar(const at::Tensor& self) {
  const c10::Stream stream = current_stream(self.device().index());
  count(&Counts::copies_to_host);
  wait_for(stream, "item()");
  return alias_for_kernels(self).item();
}
void record_stream(at::Tensor& self, c10::Stream stream) {
  record_on(self.storage().data(), stream);
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  return call_named("aten::convolution", "", input, weight, bias, stride, padding, dilation, transposed, output_padding,
                    groups)
      .at(0)
      .toTensor();
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                                    const at::Tensor& weight, at::IntArrayRef stride,
                                                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                    bool transposed, at::IntArrayRef output_padding,
                                                                    std::int64_t groups, std::array<bool, 3> mask) {
  const std::vector<std::int64_t> bias{weight.size(transposed ? 1 : 0)};
  c10::List<bool> wanted;
  for (const bool one : mask) wanted.push_back(one);
  auto made =
      call_named("aten::convolution_backward", "", gradient, input, weight, mask[2] ? c10::IValue(bias) : c10::IValue(),
                 stride, padding, dilation, transposed, output_padding, groups, wanted);
  return {made.at(0).toTensor(), made.at(1).toTensor(), made.at(2).toTensor()};
}
std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0) return {input.clone(), at::ones_like(input, at::kBool)};
  const at::Tensor mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  return {input * mask * (p < 1 ? 1 / (1 - p) : 0), mask};
}

/// module->to(device) puts a tensor of one device in the place of one of another.
bool may_take_the_place_of(const at::Tensor& self, const at::Tensor& from) {
  const auto plain = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_privateuseone());
  };
  return plain(self) && plain(from);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("unfold", &at::native::unfold);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &at::native::resize_);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("record_stream", &record_stream);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_dropout", &dropout);
  m.impl("_has_compatible_shallow_copy_type", &may_take_the_place_of);
}

// Kernels for lists of tensors: LibTorch's own for any device launch one kernel for each tensor, and no backend fallback
// precedes them.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* const name :
       {"_foreach_norm.Scalar", "_foreach_mul_.Tensor", "_foreach_mul_.Scalar", "_foreach_clamp_min_.Scalar",
        "_foreach_clamp_max_.Scalar", "_foreach_copy_", "_foreach_lerp_.Scalar", "_fused_adam_", "_fused_adamw_",
        "_fused_sgd_", "_fused_adagrad_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

// ---- Autocast.

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FULL(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(FULL)
  AT_FORALL_PROMOTE(PROMOTE)
}

}  // namespace

void register_device() {
  static const bool once = [] {
    c10::register_privateuse1_backend("sim");
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
  }();
  (void)once;
}

}  // namespace tutti::test::simulated
