#include "comm/transport/mpi/mpi_tags.h"

#include <algorithm>
#include <bit>

#include "core/hash.h"

namespace tutti::comm {
namespace {

constexpr int phase_bits = 3;
constexpr std::uint64_t close_phase = 7;  // a phase that no operation has
constexpr int max_hash_bits = 12;

std::uint64_t low_bits(std::uint64_t number, int bits) {
  return number & ((std::uint64_t{1} << bits) - 1);
}

}  // namespace

MpiTags::MpiTags(int highest)
    : bits_(std::bit_width(static_cast<std::uint64_t>(highest) + 1) - 1),
      hash_bits_(std::min(max_hash_bits, (bits_ - phase_bits) / 3)) {}

int MpiTags::message(Tag tag, std::size_t length) const {
  const std::uint64_t hash = (std::uint64_t{length} * 0x9e3779b97f4a7c15U) >> (64 - hash_bits_);
  const std::uint64_t number = low_bits(tag.operation, bits_ - phase_bits - hash_bits_);
  return static_cast<int>(((number << phase_bits | static_cast<std::uint64_t>(tag.phase)) << hash_bits_) | hash);
}

int MpiTags::close() const {
  return static_cast<int>(close_phase << hash_bits_);
}

int MpiTags::of_name(const std::string& name) const {
  const std::uint64_t hash = fnv1a(name);
  return static_cast<int>(low_bits(hash ^ hash >> 32, bits_));
}

}  // namespace tutti::comm
