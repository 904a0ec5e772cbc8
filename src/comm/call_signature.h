#pragma once
// What a rank calls, in a form that fits one small message.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tutti::comm {

struct CallSignature {
  CallSignature() = default;
  /// `call` reads like the call: "all_reduce(float [4], sum)". `length` may differ between ranks: it only travels
  /// along.
  explicit CallSignature(const std::string& call, std::uint64_t length = 0);
  std::string call() const { return {text.data(), std::min<std::size_t>(text_size, text.size())}; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(this, 1)); }

  std::uint64_t hash = 0;
  std::uint64_t length = 0;
  std::uint64_t text_size = 0;
  std::array<char, 232> text{};  // the call, cut off where it is longer; the hash covers all of it
};

/// The longest of the lengths that ranks told. Throws PeerError naming a rank whose length no memory can have.
std::uint64_t longest_of(std::span<const std::uint64_t> by_rank);
std::uint64_t longest_of(std::span<const CallSignature> by_rank);

/// Throws MismatchError, with who calls what, unless all are equal.
void check_signatures(std::span<const CallSignature> by_rank, std::uint64_t operation);

}  // namespace tutti::comm
