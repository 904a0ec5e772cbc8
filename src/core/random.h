#pragma once
// Random numbers of the kernel.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

/// Fills at most 256 bytes. Throws std::system_error if the system provides no random numbers.
void fill_random(std::span<std::byte> bytes);

/// A random 128-bit number, unique for all practical purposes.
using Nonce = std::array<std::uint64_t, 2>;
Nonce random_nonce();

}  // namespace tutti
