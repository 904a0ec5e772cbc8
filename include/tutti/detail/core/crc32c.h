#pragma once
// CRC-32C (Castagnoli): the checksum of checkpoints and of TensorBoard's event files.
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

/// Returns the checksum of `bytes`. With `before`, the checksum of earlier bytes, returns that of both in sequence.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace tutti
