#pragma once
// HMAC-SHA256 (RFC 2104), as OpenSSL's libcrypto computes it.
#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

#include "core/job_secret.h"

namespace tutti::comm {

using Digest = std::array<std::byte, 32>;
/// A random number that is asked about once.
using Challenge = std::array<std::byte, 32>;

/// Of the parts one behind the other: all but one of them must have lengths that are known beforehand.
Digest hmac_sha256(const JobSecret& secret, std::initializer_list<std::span<const std::byte>> parts);
/// Takes as long wherever they differ.
bool constant_time_equal(const Digest& one, const Digest& other);
/// Throws std::system_error where the system gives no random numbers.
Challenge random_challenge();

}  // namespace tutti::comm
