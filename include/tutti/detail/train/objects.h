#pragma once
// Packs objects into bytes, to send them between ranks: numbers, enums, strings, tensors (any shape; unpacked on the
// CPU), and vectors, arrays, optionals, pairs, tuples, maps and Examples of these. The bytes are for ranks of one job
// and not a file format.
#include <ATen/core/TensorBody.h>
#include <torch/data/example.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tutti {

namespace detail {

/// Packs a T. name(): the part of the call signature that ranks compare before they exchange a T.
template <typename T>
struct ObjectCodec {
  static constexpr bool known = false;
};

/// Reads bytes from the front. Throws UsageError if there are too few.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}
  std::string_view take(std::uint64_t count);
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  /// A number of elements that take at least one byte each.
  std::uint64_t count();
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

template <typename T>
void append_number(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) struct ObjectCodec<T> {
  static constexpr bool known = true;
  static std::string name() {
    if constexpr (std::same_as<T, bool>) return "bool";
    const char* kind = std::is_floating_point_v<T> ? "float" : std::is_signed_v<T> ? "int" : "uint";
    return kind + std::to_string(8 * sizeof(T));
  }
  static void write(std::string& bytes, const T& value) { append_number(bytes, value); }
  static T read(ByteReader& bytes) { return bytes.number<T>(); }
};

template <>
struct ObjectCodec<std::string> {
  static constexpr bool known = true;
  static std::string name() { return "string"; }
  static void write(std::string& bytes, const std::string& value) {
    append_number<std::uint64_t>(bytes, value.size());
    bytes += value;
  }
  static std::string read(ByteReader& bytes) { return std::string(bytes.take(bytes.count())); }
};

template <>
struct ObjectCodec<at::Tensor> {
  static constexpr bool known = true;
  static std::string name() { return "tensor"; }
  /// Throws UsageError for a tensor that is not dense. An undefined tensor stays undefined.
  static void write(std::string& bytes, const at::Tensor& tensor);
  static at::Tensor read(ByteReader& bytes);
};

template <typename T>
requires ObjectCodec<T>::known struct ObjectCodec<std::vector<T>> {
  static constexpr bool known = true;
  static std::string name() { return "vector<" + ObjectCodec<T>::name() + ">"; }
  static void write(std::string& bytes, const std::vector<T>& value) {
    append_number<std::uint64_t>(bytes, value.size());
    for (const auto& element : value) ObjectCodec<T>::write(bytes, element);
  }
  static std::vector<T> read(ByteReader& bytes) {
    std::vector<T> value;
    for (auto left = bytes.count(); left > 0; --left) value.push_back(ObjectCodec<T>::read(bytes));
    return value;
  }
};

template <typename T, std::size_t size>
requires ObjectCodec<T>::known struct ObjectCodec<std::array<T, size>> {
  static constexpr bool known = true;
  static std::string name() { return "array<" + ObjectCodec<T>::name() + ", " + std::to_string(size) + ">"; }
  static void write(std::string& bytes, const std::array<T, size>& value) {
    for (const T& element : value) ObjectCodec<T>::write(bytes, element);
  }
  static std::array<T, size> read(ByteReader& bytes) {
    std::array<T, size> value;
    for (T& element : value) element = ObjectCodec<T>::read(bytes);
    return value;
  }
};

template <typename T>
requires ObjectCodec<T>::known struct ObjectCodec<std::optional<T>> {
  static constexpr bool known = true;
  static std::string name() { return "optional<" + ObjectCodec<T>::name() + ">"; }
  static void write(std::string& bytes, const std::optional<T>& value) {
    append_number(bytes, value.has_value());
    if (value) ObjectCodec<T>::write(bytes, *value);
  }
  static std::optional<T> read(ByteReader& bytes) {
    if (!bytes.number<bool>()) return std::nullopt;
    return ObjectCodec<T>::read(bytes);
  }
};

template <typename First, typename Second>
requires(ObjectCodec<First>::known&& ObjectCodec<Second>::known) struct ObjectCodec<std::pair<First, Second>> {
  static constexpr bool known = true;
  static std::string name() { return "pair<" + ObjectCodec<First>::name() + ", " + ObjectCodec<Second>::name() + ">"; }
  static void write(std::string& bytes, const std::pair<First, Second>& value) {
    ObjectCodec<First>::write(bytes, value.first);
    ObjectCodec<Second>::write(bytes, value.second);
  }
  static std::pair<First, Second> read(ByteReader& bytes) {
    First first = ObjectCodec<First>::read(bytes);
    return {std::move(first), ObjectCodec<Second>::read(bytes)};
  }
};

template <typename... Ts>
requires(ObjectCodec<Ts>::known&&...) struct ObjectCodec<std::tuple<Ts...>> {
  static constexpr bool known = true;
  static std::string name() {
    std::string names;
    ((names += (names.empty() ? "" : ", ") + ObjectCodec<Ts>::name()), ...);
    return "tuple<" + names + ">";
  }
  static void write(std::string& bytes, const std::tuple<Ts...>& value) {
    std::apply([&bytes](const Ts&... elements) { (ObjectCodec<Ts>::write(bytes, elements), ...); }, value);
  }
  // Braces, because function arguments have no order of evaluation.
  static std::tuple<Ts...> read(ByteReader& bytes) { return std::tuple<Ts...>{ObjectCodec<Ts>::read(bytes)...}; }
};

template <typename Key, typename T>
requires(ObjectCodec<Key>::known&& ObjectCodec<T>::known) struct ObjectCodec<std::map<Key, T>> {
  static constexpr bool known = true;
  static std::string name() { return "map<" + ObjectCodec<Key>::name() + ", " + ObjectCodec<T>::name() + ">"; }
  static void write(std::string& bytes, const std::map<Key, T>& value) {
    append_number<std::uint64_t>(bytes, value.size());
    for (const auto& [key, element] : value) {
      ObjectCodec<Key>::write(bytes, key);
      ObjectCodec<T>::write(bytes, element);
    }
  }
  static std::map<Key, T> read(ByteReader& bytes) {
    std::map<Key, T> value;
    for (auto left = bytes.count(); left > 0; --left) {
      Key key = ObjectCodec<Key>::read(bytes);
      value.emplace(std::move(key), ObjectCodec<T>::read(bytes));
    }
    return value;
  }
};

template <typename Data, typename Target>
requires(ObjectCodec<Data>::known&& ObjectCodec<Target>::known) struct ObjectCodec<torch::data::Example<Data, Target>> {
  static constexpr bool known = true;
  static std::string name() {
    return "example<" + ObjectCodec<Data>::name() + ", " + ObjectCodec<Target>::name() + ">";
  }
  static void write(std::string& bytes, const torch::data::Example<Data, Target>& value) {
    ObjectCodec<Data>::write(bytes, value.data);
    ObjectCodec<Target>::write(bytes, value.target);
  }
  static torch::data::Example<Data, Target> read(ByteReader& bytes) {
    Data data = ObjectCodec<Data>::read(bytes);
    return {std::move(data), ObjectCodec<Target>::read(bytes)};
  }
};

template <typename Data>
requires ObjectCodec<Data>::known struct ObjectCodec<torch::data::Example<Data, torch::data::example::NoTarget>> {
  static constexpr bool known = true;
  static std::string name() { return "example<" + ObjectCodec<Data>::name() + ">"; }
  static void write(std::string& bytes, const torch::data::Example<Data, torch::data::example::NoTarget>& value) {
    ObjectCodec<Data>::write(bytes, value.data);
  }
  static torch::data::Example<Data, torch::data::example::NoTarget> read(ByteReader& bytes) {
    return {ObjectCodec<Data>::read(bytes)};
  }
};

/// Throws UsageError: bytes are left over.
[[noreturn]] void refuse_leftover_bytes();

}  // namespace detail

/// A type that can be packed.
template <typename T>
concept Packable = detail::ObjectCodec<T>::known;

/// Returns the bytes of `object`, for unpack<T>() on a rank of this job. Throws UsageError for a tensor that is not
/// dense.
template <Packable T>
std::string pack(const T& object) {
  std::string bytes;
  detail::ObjectCodec<T>::write(bytes, object);
  return bytes;
}

/// Returns the object that pack<T>() packed into `bytes`. Throws UsageError if there are too few or too many bytes.
template <Packable T>
T unpack(std::string_view bytes) {
  detail::ByteReader reader(bytes);
  T object = detail::ObjectCodec<T>::read(reader);
  if (!reader.at_end()) detail::refuse_leftover_bytes();
  return object;
}

}  // namespace tutti
