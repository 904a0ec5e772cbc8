#pragma once
// The call that a rank makes, in a form of fixed size that fits one small message.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "comm/backend/operation.h"

namespace tutti::comm {

struct CallSignature {
  CallSignature() = default;
  /// `call` is the text of the call: "all_reduce(float [4], sum)". `length` may differ between ranks, because it is not
  /// compared.
  explicit CallSignature(const std::string& call, std::uint64_t length = 0);
  std::string call() const { return {text.data(), std::min<std::size_t>(text_size, text.size())}; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(this, 1)); }

  std::uint64_t hash = 0;
  std::uint64_t length = 0;
  std::uint64_t text_size = 0;
  std::array<char, 232> text{};  // the call, truncated to this size; the hash covers all of it
};

/// The longest of the lengths that the ranks announced. Throws PeerError naming a rank whose length exceeds the address
/// space.
std::uint64_t longest_of(std::span<const std::uint64_t> by_rank);
std::uint64_t longest_of(std::span<const CallSignature> by_rank);

/// Throws MismatchError, with the call of each rank, unless all signatures are equal.
void check_signatures(std::span<const CallSignature> by_rank, const Operation& operation);

}  // namespace tutti::comm
