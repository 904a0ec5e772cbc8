#pragma once
// Moving batches to a device. to_device(batch, place) is known for tensors, torch::data::Example, numbers, strings, and
// std::vector, pair, tuple, map, unordered_map and optional of what it is known for. A batch type of your own joins by
// an overload in its namespace that says where its tensors are:
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
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tutti/core/error.h"

namespace tutti {

/// What happens to each tensor of a batch. A value; may be used by several threads.
class Placement {
 public:
  /// Everything stays where it is.
  Placement() = default;
  /// Tensors go to `device`. With non_blocking, copies to a CUDA device start from pinned memory and are not waited for
  /// (what runs on the same stream after them sees them done); elsewhere it changes nothing. Throws UsageError for a
  /// device that is not there.
  explicit Placement(at::Device device, bool non_blocking = false);

  /// The part of it that may be done ahead, on another thread: a copy to pinned memory, where one is needed.
  Placement ahead() const;
  /// Whether tensors are touched at all.
  bool moves() const { return device_.has_value(); }

  /// `tensor` where it shall be; the same one where nothing is to do. An undefined one stays undefined.
  at::Tensor operator()(const at::Tensor& tensor) const;

 private:
  std::optional<at::Device> device_;
  bool non_blocking_ = false;
  bool only_pin_ = false;
};

/// What can be moved.
template <typename T>
concept Placeable = requires(T batch, const Placement& place) {
  { to_device(std::move(batch), place) } -> std::convertible_to<T>;
};

/// A tensor goes where `place` says.
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

/// Data and target.
template <typename Data, typename Target>
torch::data::Example<Data, Target> to_device(torch::data::Example<Data, Target> example, const Placement& place) {
  example.data = to_device(std::move(example.data), place);
  if constexpr (!std::is_void_v<Target>) example.target = to_device(std::move(example.target), place);
  return example;
}

/// Every element.
template <Placeable T>
std::vector<T> to_device(std::vector<T> batch, const Placement& place) {
  if constexpr (!std::is_arithmetic_v<T>) {
    for (T& element : batch) element = to_device(std::move(element), place);
  }
  return batch;
}

/// What it holds, if anything.
template <Placeable T>
std::optional<T> to_device(std::optional<T> batch, const Placement& place) {
  if (batch) *batch = to_device(std::move(*batch), place);
  return batch;
}

/// Both.
template <Placeable First, Placeable Second>
std::pair<First, Second> to_device(std::pair<First, Second> batch, const Placement& place) {
  return {to_device(std::move(batch.first), place), to_device(std::move(batch.second), place)};
}

/// Every element.
template <Placeable... Ts>
std::tuple<Ts...> to_device(std::tuple<Ts...> batch, const Placement& place) {
  return std::apply([&place](Ts&... elements) { return std::tuple<Ts...>(to_device(std::move(elements), place)...); },
                    batch);
}

/// Every value; keys stay.
template <typename Key, Placeable T>
std::map<Key, T> to_device(std::map<Key, T> batch, const Placement& place) {
  for (auto& [key, element] : batch) element = to_device(std::move(element), place);
  return batch;
}

/// Every value; keys stay.
template <typename Key, Placeable T>
std::unordered_map<Key, T> to_device(std::unordered_map<Key, T> batch, const Placement& place) {
  for (auto& [key, element] : batch) element = to_device(std::move(element), place);
  return batch;
}

namespace detail {

/// Throws UsageError where batches cannot go to `device`.
template <typename Batch>
Placement placement_of(const std::optional<at::Device>& device, bool non_blocking) {
  if (!device) return {};
  if (!Placeable<Batch>) {
    throw UsageError(
        "batches of this type cannot be moved to a device: say where their tensors are with an overload of "
        "to_device(Batch, const tutti::Placement&) in their namespace");
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
