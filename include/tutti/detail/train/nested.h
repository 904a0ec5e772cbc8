#pragma once
// Nested structures of tensors: a tensor, or a std::vector, array, optional, pair, tuple, map or torch::data::Example
// of nested structures. Each tensor has a path in its structure: "['logits'][0]".
#include <ATen/core/TensorBody.h>
#include <torch/data/example.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/core/error.h"

namespace tutti {

namespace detail {

enum class NestedKind { none, tensor, sequence, array, optional, map, pair, tuple, example };

template <typename T>
struct NestedTraits {
  static constexpr NestedKind kind = NestedKind::none;
};
template <NestedKind of, typename... Parts>
struct NestedOf {
  static constexpr NestedKind kind = ((NestedTraits<Parts>::kind != NestedKind::none) && ...) ? of : NestedKind::none;
};
template <>
struct NestedTraits<at::Tensor> : NestedOf<NestedKind::tensor> {};
template <typename T>
struct NestedTraits<std::vector<T>> : NestedOf<NestedKind::sequence, T> {};
template <typename T, std::size_t size>
struct NestedTraits<std::array<T, size>> : NestedOf<NestedKind::array, T> {};
template <typename T>
struct NestedTraits<std::optional<T>> : NestedOf<NestedKind::optional, T> {};
template <typename Key, typename T>
requires(std::same_as<Key, std::string> || std::integral<Key>) struct NestedTraits<std::map<Key, T>>
    : NestedOf<NestedKind::map, T> {
};
template <typename First, typename Second>
struct NestedTraits<std::pair<First, Second>> : NestedOf<NestedKind::pair, First, Second> {};
template <typename... Ts>
struct NestedTraits<std::tuple<Ts...>> : NestedOf<NestedKind::tuple, Ts...> {};
template <typename Data, typename Target>
struct NestedTraits<torch::data::Example<Data, Target>> : NestedOf<NestedKind::example, Data, Target> {};

inline std::string key_path(const std::string& key) {
  return "['" + key + "']";
}
template <std::integral Key>
std::string key_path(Key key) {
  return "[" + std::to_string(key) + "]";
}

}  // namespace detail

/// A nested structure of tensors.
template <typename T>
concept Nested = detail::NestedTraits<T>::kind != detail::NestedKind::none;

/// Returns the same structure with each tensor replaced by map(path, tensor). Calls `map` in a fixed order: by index
/// and by key.
template <Nested T, typename Map>
T map_tensors(const T& value, Map&& map, const std::string& path = "") {
  using detail::NestedKind;
  constexpr NestedKind kind = detail::NestedTraits<T>::kind;
  if constexpr (kind == NestedKind::tensor) {
    return map(path, value);
  } else if constexpr (kind == NestedKind::sequence) {
    T mapped;
    mapped.reserve(value.size());
    for (const auto& element : value) {
      mapped.push_back(map_tensors(element, map, path + detail::key_path(mapped.size())));
    }
    return mapped;
  } else if constexpr (kind == NestedKind::array) {
    T mapped;
    for (std::size_t i = 0; i < value.size(); ++i) mapped[i] = map_tensors(value[i], map, path + detail::key_path(i));
    return mapped;
  } else if constexpr (kind == NestedKind::optional) {
    return value ? T(map_tensors(*value, map, path)) : T();
  } else if constexpr (kind == NestedKind::map) {
    T mapped;
    for (const auto& [key, element] : value) {
      mapped.emplace(key, map_tensors(element, map, path + detail::key_path(key)));
    }
    return mapped;
  } else if constexpr (kind == NestedKind::tuple) {
    // Braces, because function arguments have no order of evaluation.
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return T{map_tensors(std::get<i>(value), map, path + detail::key_path(i))...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (kind == NestedKind::example) {
    auto data = map_tensors(value.data, map, path + ".data");
    return T(std::move(data), map_tensors(value.target, map, path + ".target"));
  } else {
    auto first = map_tensors(value.first, map, path + ".first");
    return T(std::move(first), map_tensors(value.second, map, path + ".second"));
  }
}

/// One tensor of a structure.
struct NestedTensor {
  std::string path;   ///< its path: "['logits'][0]"; empty if the structure is a tensor
  at::Tensor tensor;  ///< shared, not copied
};

/// All tensors of a structure, in the order of map_tensors().
template <Nested T>
std::vector<NestedTensor> nested_tensors(const T& value) {
  std::vector<NestedTensor> tensors;
  map_tensors(value, [&tensors](const std::string& path, const at::Tensor& tensor) {
    tensors.push_back({path, tensor});
    return tensor;
  });
  return tensors;
}

/// Returns the structure of `value` with `tensors`, which must be as many and in the same order. Throws UsageError if
/// there are fewer.
template <Nested T>
T with_tensors(const T& value, const std::vector<at::Tensor>& tensors) {
  std::size_t next = 0;
  return map_tensors(value, [&](const std::string&, const at::Tensor&) {
    if (next == tensors.size()) throw UsageError("with_tensors: the structure has more tensors than were passed");
    return tensors[next++];
  });
}

}  // namespace tutti
