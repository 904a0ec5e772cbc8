#pragma once
// Dealing a list that every rank has: prompts, files, indices. Nothing is exchanged.
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

/// Items [begin, end) of a list, and then its last item again, `padding` times.
struct ProcessShare {
  std::int64_t begin = 0;    ///< first item
  std::int64_t end = 0;      ///< behind the last item
  std::int64_t padding = 0;  ///< how often the last item comes again
  bool operator==(const ProcessShare&) const = default;
};

/// The share of `rank`: contiguous, the first ranks take one more where the items do not divide. With `apply_padding`
/// all ranks get as many as the first one. Throws UsageError for a rank that is none.
ProcessShare share_of(std::int64_t items, int rank, int size, bool apply_padding = false);

namespace detail {

constexpr std::int64_t unknown_items = -1;  // an empty map's

template <typename T>
struct Splitting {
  static constexpr bool known = false;
};

/// Throws UsageError unless `count` is `items`, which may be unknown yet.
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

/// What can be split: vectors of anything, tensors (along dim 0), and maps, tuples and pairs of these, whose parts are
/// split alike.
template <typename T>
concept Splittable = detail::Splitting<T>::known;

/// The share of `rank`; see share_of(). All ranks must have the same `inputs`. Tensors without padding are views.
/// Throws UsageError where the parts of a map, tuple or pair are not as long as one another, and for tensors without
/// dimensions.
template <Splittable T>
[[nodiscard]] T split_between_processes(const T& inputs, int rank, int size, bool apply_padding = false) {
  const auto items = detail::Splitting<T>::items(inputs);
  if (items == detail::unknown_items) return inputs;
  return detail::Splitting<T>::take(inputs, share_of(items, rank, size, apply_padding));
}

}  // namespace tutti
