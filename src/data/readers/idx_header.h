#pragma once
// The header of an idx file, as a pure function of the file's bytes: no LibTorch, no files.
//
//   2 bytes   0
//   1 byte    type of the elements
//   1 byte    number of dimensions d
//   4d bytes  sizes, big-endian
//   the rest  elements, big-endian, the last dimension fastest
//
// The format is described with the MNIST database of handwritten digits (LeCun, Cortes, Burges).
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::readers {

enum class IdxType : std::uint8_t {
  unsigned_byte = 0x08,
  signed_byte = 0x09,
  int16 = 0x0B,
  int32 = 0x0C,
  float32 = 0x0D,
  float64 = 0x0E,
};

struct IdxHeader {
  IdxType type = IdxType::unsigned_byte;
  std::vector<std::int64_t> shape{};
  std::size_t data_offset = 0;
};

/// Bytes of an element.
std::size_t width_of(IdxType type);

/// Throws DataError saying what is wrong, also where the data are not exactly what the sizes say.
IdxHeader parse_idx(std::span<const std::byte> file);

}  // namespace tutti::readers
