#pragma once
// CRC-32C (Castagnoli): the checksum of checkpoints and of TensorBoard's event files.
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

/// The checksum of `bytes`, or of what went before and `bytes` when `before` is the checksum of that.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace tutti
