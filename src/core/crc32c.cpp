#include "tutti/detail/core/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

namespace tutti {

namespace {

constexpr std::uint32_t polynomial = 0x82F63B78;  // reflected
constexpr std::size_t word = 8;

// Slicing by 8 (Kounavis and Berry, "A Systematic Approach to Building High Performance, Software-based, CRC
// Generators", ISCC 2005). Table k advances a byte over k further bytes, so eight bytes need eight independent
// look-ups.
using Tables = std::array<std::array<std::uint32_t, 256>, word>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? polynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < word; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = (crc >> 8) ^ tables[0][crc & 0xFF];
    }
  }
  return tables;
}

constexpr Tables tables = make_tables();
static_assert(std::endian::native == std::endian::little);

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  while (bytes.size() >= word) {
    std::uint64_t next = 0;
    std::memcpy(&next, bytes.data(), word);
    next ^= crc;
    crc = 0;
    for (std::size_t k = 0; k < word; ++k) crc ^= tables[word - 1 - k][(next >> (8 * k)) & 0xFF];
    bytes = bytes.subspan(word);
  }
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ tables[0][(crc ^ static_cast<std::uint32_t>(byte)) & 0xFF];
  return ~crc;
}

}  // namespace tutti
