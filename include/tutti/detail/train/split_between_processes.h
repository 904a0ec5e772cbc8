#pragma once
// Splits a list that every rank has (prompts, files, indices) over the ranks, without communication.
#include <ATen/core/TensorBody.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/core/error.h"

namespace tutti {

/// Items [begin, end) of a list, followed by `padding` copies of the list's last item.
struct ProcessShare {
  std::int64_t begin = 0;    ///< first item
  std::int64_t end = 0;      ///< one past the last item
  std::int64_t padding = 0;  ///< number of copies of the last item
  bool operator==(const ProcessShare&) const = default;
};

/// The share of `rank`, which is contiguous. If the items do not divide evenly, the first ranks take one more. With
/// `apply_padding` all ranks get as many items as rank 0. Throws UsageError for a rank outside 0 .. size - 1.
ProcessShare share_of(std::int64_t items, int rank, int size, bool apply_padding = false);

namespace detail {

constexpr std::int64_t unknown_items = -1;  // an empty map's

template <typename T>
struct Splitting {
  static constexpr bool known = false;
};

/// Returns `count`. Throws UsageError if `items` is known and different.
std::int64_t same_items(std::int64_t items, std::int64_t count);

template <>
struct Splitting<at::Tensor> {
  static constexpr bool known = true;
  static std::int64_t items(const at::Tensor& value);
  static at::Tensor take(const at::Tensor& value, const ProcessShare& share);
};

template <typename T>
struct Splitting<std::vector<T>> {
  static constexpr bool known = true;
  static std::int64_t items(const std::vector<T>& value) { return static_cast<std::int64_t>(value.size()); }
  static std::vector<T> take(const std::vector<T>& value, const ProcessShare& share) {
    std::vector<T> taken(value.begin() + share.begin, value.begin() + share.end);
    for (auto left = share.padding; left > 0; --left) taken.push_back(value.back());
    return taken;
  }
};

template <typename Key, typename T>
requires Splitting<T>::known struct Splitting<std::map<Key, T>> {
  static constexpr bool known = true;
  static std::int64_t items(const std::map<Key, T>& value) {
    std::int64_t items = unknown_items;
    for (const auto& [key, part] : value) items = same_items(items, Splitting<T>::items(part));
    return items;
  }
  static std::map<Key, T> take(const std::map<Key, T>& value, const ProcessShare& share) {
    std::map<Key, T> taken;
    for (const auto& [key, part] : value) taken.emplace(key, Splitting<T>::take(part, share));
    return taken;
  }
};

template <typename... Ts>
requires(Splitting<Ts>::known&&...) struct Splitting<std::tuple<Ts...>> {
  static constexpr bool known = true;
  static std::int64_t items(const std::tuple<Ts...>& value) {
    std::int64_t items = unknown_items;
    std::apply([&](const Ts&... parts) { ((items = same_items(items, Splitting<Ts>::items(parts))), ...); }, value);
    return items;
  }
  static std::tuple<Ts...> take(const std::tuple<Ts...>& value, const ProcessShare& share) {
    return std::apply([&](const Ts&... parts) { return std::tuple<Ts...>(Splitting<Ts>::take(parts, share)...); },
                      value);
  }
};

template <typename First, typename Second>
requires(Splitting<First>::known&& Splitting<Second>::known) struct Splitting<std::pair<First, Second>> {
  static constexpr bool known = true;
  static std::int64_t items(const std::pair<First, Second>& value) {
    return same_items(Splitting<First>::items(value.first), Splitting<Second>::items(value.second));
  }
  static std::pair<First, Second> take(const std::pair<First, Second>& value, const ProcessShare& share) {
    return {Splitting<First>::take(value.first, share), Splitting<Second>::take(value.second, share)};
  }
};

}  // namespace detail

/// A type that can be split: a vector, a tensor (along dim 0), or a map, tuple or pair of these. All parts are split in
/// the same way.
template <typename T>
concept Splittable = detail::Splitting<T>::known;

/// Returns the share of `rank`; see share_of(). All ranks must pass the same `inputs`. Tensors without padding are
/// views. Throws UsageError if the parts of a map, tuple or pair differ in length, and for tensors without dimensions.
template <Splittable T>
[[nodiscard]] T split_between_processes(const T& inputs, int rank, int size, bool apply_padding = false) {
  const auto items = detail::Splitting<T>::items(inputs);
  if (items == detail::unknown_items) return inputs;
  return detail::Splitting<T>::take(inputs, share_of(items, rank, size, apply_padding));
}

}  // namespace tutti
