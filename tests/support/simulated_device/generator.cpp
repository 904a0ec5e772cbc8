// A generator is a seed and a counter, as on a GPU: the host takes the next number when it queues a kernel, and the
// kernel draws from a generator that this number seeds. So the order in which streams run changes no random number.
#include "support/simulated_device/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "support/simulated_device/runtime.h"

namespace tutti::test::simulated {
namespace {

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex index)
      : c10::GeneratorImpl(c10::Device(type, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(std::uint64_t seed) override { state_ = {.seed = seed}; }
  void set_offset(std::uint64_t offset) override { state_.offset = offset; }
  std::uint64_t get_offset() const override { return state_.offset; }
  std::uint64_t current_seed() const override { return state_.seed; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state_.seed;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == sizeof(State) && state.dtype() == caffe2::TypeMeta::Make<std::uint8_t>(),
                "sim: not a state of this generator");
    std::memcpy(&state_, state.data(), sizeof(State));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state = at::empty({sizeof(State)}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), &state_, sizeof(State));
    return state.getIntrusivePtr();
  }
  at::Generator for_one_kernel() {
    return at::make_generator<at::CPUGeneratorImpl>(state_.seed * 1000003 + state_.offset++);
  }

 private:
  struct State {
    std::uint64_t seed = c10::default_rng_seed_val;
    std::uint64_t offset = 0;
  };

  Generator* clone_impl() const override {
    auto* const copy = new Generator(device_.index());
    copy->state_ = state_;
    return copy;
  }

  State state_;
};

}  // namespace

at::Generator new_generator(int device) {
  return at::make_generator<Generator>(static_cast<c10::DeviceIndex>(device));
}

at::Generator& default_generator(int device) {
  static auto* const all = [] {
    auto* const generators = new std::vector<at::Generator>;
    for (int i = 0; i < most_devices; ++i) generators->push_back(new_generator(i));
    return generators;
  }();
  return all->at(static_cast<std::size_t>(device));
}

at::Generator generator_for_one_kernel(const std::optional<at::Generator>& generator, int device) {
  at::Generator source = generator && generator->defined() ? *generator : default_generator(device);
  const std::lock_guard lock(source.mutex());
  return source.get<Generator>()->for_one_kernel();
}

}  // namespace tutti::test::simulated
