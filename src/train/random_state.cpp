#include "train/random_state.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/devices.h"

namespace tutti {

namespace {

std::vector<std::pair<std::string, at::Generator>> generators() {
  std::vector<std::pair<std::string, at::Generator>> all;
  all.emplace_back("cpu", at::globalContext().defaultGenerator(at::kCPU));
  const auto type = devices::accelerator_type();
  const int count = type ? devices::device_count(*type) : 0;
  for (int i = 0; i < count; ++i) {
    const at::Device device(*type, static_cast<c10::DeviceIndex>(i));
    all.emplace_back(c10::DeviceTypeName(*type, /*lower_case=*/true) + "_" + std::to_string(i),
                     at::globalContext().defaultGenerator(device));
  }
  return all;
}

}  // namespace

StateDict random_state() {
  StateDict state;
  for (auto& [name, generator] : generators()) {
    const std::lock_guard lock(generator.mutex());
    state.set(name, generator.get_state());
  }
  return state;
}

void load_random_state(const StateDict& state) {
  // Validated on copies of the generators first, so that an exception changes nothing.
  std::vector<std::pair<at::Generator, at::Tensor>> restored;
  for (auto& [name, generator] : generators()) {
    if (!state.contains(name)) continue;
    const auto& saved = state.get<at::Tensor>(name);
    try {
      generator.clone().set_state(saved);
    } catch (const c10::Error&) {
      throw CheckpointError("the saved random state of '" + name + "' is damaged, or was written by another LibTorch");
    }
    restored.emplace_back(generator, saved);
  }
  for (auto& [generator, saved] : restored) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(saved);
  }
}

}  // namespace tutti
