#pragma once
// Numbers as files hold them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tutti/data/data_error.h"

namespace tutti::readers {

/// The little-endian number at `offset`, which is inside.
template <typename T>
T little_endian(std::span<const std::byte> bytes, std::size_t offset) {
  T number;
  std::memcpy(&number, bytes.data() + offset, sizeof(T));  // as every machine that LibTorch runs on
  return number;
}

inline std::uint32_t big_endian_32(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 4; ++i) number = number << 8 | std::to_integer<std::uint32_t>(bytes[offset + i]);
  return number;
}

/// Turns the order of the bytes of each number round.
inline void swap_bytes(std::span<std::byte> bytes, std::size_t width) {
  for (std::size_t first = 0; first + width <= bytes.size(); first += width) {
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(first),
                 bytes.begin() + static_cast<std::ptrdiff_t>(first + width));
  }
}

/// The bytes of an array of `shape`. Throws DataError where no memory has as many.
inline std::uint64_t bytes_of(const std::vector<std::int64_t>& shape, std::size_t width) {
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t bytes = width;
  bool empty = false;
  for (const std::int64_t size : shape) {
    empty = empty || size == 0;
    if (size > 0 && bytes > most / static_cast<std::uint64_t>(size)) {
      throw DataError("its header says a shape of more bytes than there can be");
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

/// Runs `parse` and puts the file's name in front of what a DataError says.
template <typename Path, typename Parse>
auto with_file_name(const Path& path, Parse parse) {
  try {
    return parse();
  } catch (const DataError& error) {
    throw DataError(path.string() + ": " + error.what());
  }
}

}  // namespace tutti::readers
