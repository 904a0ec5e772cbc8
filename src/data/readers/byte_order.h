#pragma once
// Reads numbers in the byte order of a file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::readers {

/// The little-endian number at `offset`, which must be in range.
template <typename T>
T little_endian(std::span<const std::byte> bytes, std::size_t offset) {
  T number;
  std::memcpy(&number, bytes.data() + offset, sizeof(T));  // LibTorch supports little-endian machines only
  return number;
}

inline std::uint32_t big_endian_32(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 4; ++i) number = number << 8 | std::to_integer<std::uint32_t>(bytes[offset + i]);
  return number;
}

/// Reverses the bytes of each number.
inline void swap_bytes(std::span<std::byte> bytes, std::size_t width) {
  for (std::size_t first = 0; first + width <= bytes.size(); first += width) {
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(first),
                 bytes.begin() + static_cast<std::ptrdiff_t>(first + width));
  }
}

/// Size in bytes of an array of `shape`. Throws DataError if it does not fit into 64 bits.
inline std::uint64_t bytes_of(const std::vector<std::int64_t>& shape, std::size_t width) {
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t bytes = width;
  bool empty = false;
  for (const std::int64_t size : shape) {
    empty = empty || size == 0;
    if (size > 0 && bytes > most / static_cast<std::uint64_t>(size)) {
      throw DataError("its header has a shape whose size in bytes does not fit into 64 bits");
    }
    if (size > 0) bytes *= static_cast<std::uint64_t>(size);
  }
  return empty ? 0 : bytes;
}

/// "3 x 28 x 28".
inline std::string describe_shape(const std::vector<std::int64_t>& shape) {
  std::string words;
  for (const std::int64_t size : shape) words += (words.empty() ? "" : " x ") + std::to_string(size);
  return words.empty() ? "scalar" : words;
}

/// Runs `parse` and prepends the file's name to the message of a DataError.
template <typename Path, typename Parse>
auto with_file_name(const Path& path, Parse parse) {
  try {
    return parse();
  } catch (const DataError& error) {
    throw DataError(path.string() + ": " + error.what());
  }
}

}  // namespace tutti::readers
