#pragma once
// Moves batches to a device. to_device(batch, place) is defined for tensors, torch::data::Example, numbers, strings,
// and for std::vector, pair, tuple, map, unordered_map and optional of these. A user-defined batch type needs an
// overload in its own namespace that moves its tensors:
//
//   namespace mine {
//   struct Batch { at::Tensor tokens; at::Tensor mask; };
//   Batch to_device(Batch batch, const tutti::Placement& place) { return {place(batch.tokens), place(batch.mask)}; }
//   }
#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>
#include <torch/data/example.h>

#include <concepts>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tutti/core/error.h"

namespace tutti {

/// How each tensor of a batch is moved. A value type; copies share a stream. Thread safe.
class Placement {
 public:
  /// Tensors are not moved.
  Placement() = default;
  /// Tensors are moved to `device`. With non_blocking, copies to an accelerator start from pinned memory and run on a
  /// stream of their own, beside the program's work. Later work on the calling thread's current stream sees the copied
  /// data, and no call waits for the device. On the CPU non_blocking has no effect.
  /// Throws UsageError if the device does not exist.
  explicit Placement(at::Device device, bool non_blocking = true);

  /// The part that another thread may do ahead of the loop: the copy to pinned memory, if one is needed.
  Placement ahead() const;
  /// True if a device is set.
  bool moves() const { return device_.has_value(); }

  /// Returns `tensor` on the device, or `tensor` itself if it is there already. An undefined tensor stays undefined.
  at::Tensor operator()(const at::Tensor& tensor) const;

 private:
  class CopyStream;

  std::optional<at::Device> device_;
  std::shared_ptr<CopyStream> copies_;  ///< null: copies block
  bool only_pin_ = false;
};

/// A type for which to_device() is defined.
template <typename T>
concept Placeable = requires(T batch, const Placement& place) {
  { to_device(std::move(batch), place) } -> std::convertible_to<T>;
};

/// Moves a tensor.
inline at::Tensor to_device(const at::Tensor& tensor, const Placement& place) {
  return place(tensor);
}

/// Numbers have no device.
template <typename T>
requires std::is_arithmetic_v<T> || std::is_enum_v<T> T to_device(T number, const Placement&) {
  return number;
}

/// Text has no device.
inline std::string to_device(std::string text, const Placement&) {
  return text;
}

/// Moves data and target.
template <typename Data, typename Target>
torch::data::Example<Data, Target> to_device(torch::data::Example<Data, Target> example, const Placement& place) {
  example.data = to_device(std::move(example.data), place);
  if constexpr (!std::is_void_v<Target>) example.target = to_device(std::move(example.target), place);
  return example;
}

/// Moves every element.
template <Placeable T>
std::vector<T> to_device(std::vector<T> batch, const Placement& place) {
  if constexpr (!std::is_arithmetic_v<T>) {
    for (T& element : batch) element = to_device(std::move(element), place);
  }
  return batch;
}

/// Moves the value, if there is one.
template <Placeable T>
std::optional<T> to_device(std::optional<T> batch, const Placement& place) {
  if (batch) *batch = to_device(std::move(*batch), place);
  return batch;
}

/// Moves both parts.
template <Placeable First, Placeable Second>
std::pair<First, Second> to_device(std::pair<First, Second> batch, const Placement& place) {
  return {to_device(std::move(batch.first), place), to_device(std::move(batch.second), place)};
}

/// Moves every element.
template <Placeable... Ts>
std::tuple<Ts...> to_device(std::tuple<Ts...> batch, const Placement& place) {
  return std::apply([&place](Ts&... elements) { return std::tuple<Ts...>(to_device(std::move(elements), place)...); },
                    batch);
}

/// Moves every value; keys are kept.
template <typename Key, Placeable T>
std::map<Key, T> to_device(std::map<Key, T> batch, const Placement& place) {
  for (auto& [key, element] : batch) element = to_device(std::move(element), place);
  return batch;
}

/// Moves every value; keys are kept.
template <typename Key, Placeable T>
std::unordered_map<Key, T> to_device(std::unordered_map<Key, T> batch, const Placement& place) {
  for (auto& [key, element] : batch) element = to_device(std::move(element), place);
  return batch;
}

namespace detail {

/// Throws UsageError if batches of this type cannot be moved and `device` is set.
template <typename Batch>
Placement placement_of(const std::optional<at::Device>& device, bool non_blocking) {
  if (!device) return {};
  if (!Placeable<Batch>) {
    throw UsageError(
        "batches of this type cannot be moved to a device: define an overload of "
        "to_device(Batch, const tutti::Placement&) in their namespace that moves their tensors");
  }
  return Placement(*device, non_blocking);
}

template <typename Batch>
Batch placed(Batch batch, const Placement& place) {
  if constexpr (Placeable<Batch>) {
    if (place.moves()) return to_device(std::move(batch), place);
  }
  return batch;
}

}  // namespace detail

}  // namespace tutti
