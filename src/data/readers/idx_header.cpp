#include "data/readers/idx_header.h"

#include <string>

#include "data/readers/byte_order.h"
#include "tutti/core/error.h"

namespace tutti::readers {

std::size_t width_of(IdxType type) {
  switch (type) {
    case IdxType::unsigned_byte:
    case IdxType::signed_byte:
      return 1;
    case IdxType::int16:
      return 2;
    case IdxType::int32:
    case IdxType::float32:
      return 4;
    case IdxType::float64:
      return 8;
  }
  return 0;
}

IdxHeader parse_idx(std::span<const std::byte> file) {
  constexpr std::size_t fixed = 4;
  const auto byte_at = [file](std::size_t i) { return std::to_integer<unsigned>(file[i]); };
  if (file.size() >= 2 && byte_at(0) == 0x1F && byte_at(1) == 0x8B) {
    throw DataError("is packed with gzip: unpack it first");
  }
  if (file.size() < fixed || byte_at(0) != 0 || byte_at(1) != 0) {
    throw DataError("is not an idx file: it does not begin with two zero bytes, a type and a number of dimensions");
  }
  IdxHeader header{.type = static_cast<IdxType>(byte_at(2))};
  const std::size_t width = width_of(header.type);
  if (width == 0) throw DataError("is not an idx file: unknown element type " + std::to_string(byte_at(2)));
  const std::size_t dimensions = byte_at(3);
  if (dimensions == 0) throw DataError("has no dimensions");
  header.data_offset = fixed + 4 * dimensions;
  if (file.size() < header.data_offset) throw DataError("ends inside its header");
  for (std::size_t i = 0; i < dimensions; ++i) header.shape.push_back(big_endian_32(file, fixed + 4 * i));
  const std::uint64_t expected = bytes_of(header.shape, width);
  const std::uint64_t there = file.size() - header.data_offset;
  if (there != expected) {
    throw DataError("its header declares " + describe_shape(header.shape) + " elements, " + std::to_string(expected) +
                    " bytes, but " + std::to_string(there) + " follow" +
                    (there < expected ? ": it is truncated, download it again" : ""));
  }
  return header;
}

}  // namespace tutti::readers
