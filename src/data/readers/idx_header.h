#pragma once
// The header of an idx file, parsed from its bytes. No I/O, no LibTorch.
//
//   2 bytes   0
//   1 byte    type of the elements
//   1 byte    number of dimensions d
//   4d bytes  sizes, big-endian
//   the rest  elements, big-endian, the last dimension fastest
//
// Source: the MNIST database of handwritten digits (LeCun, Cortes, Burges).
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

/// Bytes per element.
std::size_t width_of(IdxType type);

/// Throws DataError with the reason if the header is invalid or the size of the data does not match it.
IdxHeader parse_idx(std::span<const std::byte> file);

}  // namespace tutti::readers
