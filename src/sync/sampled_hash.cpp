#include "sync/sampled_hash.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

namespace tutti::sync {

namespace {

constexpr std::int64_t max_parts = 16;
constexpr std::int64_t max_rounds = 1000;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  // splitmix64's finalizer: every input bit affects every output bit.
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31);
}

std::uint64_t hash_bytes(const std::byte* bytes, std::size_t count) {
  constexpr std::size_t word = sizeof(std::uint64_t);
  std::uint64_t hash = 0;
  for (std::size_t begin = 0; begin < count; begin += word) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes + begin, std::min(word, count - begin));
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;  // a fast step for long runs; mix() follows once
    hash ^= hash >> 32;
  }
  return hash;
}

/// The runs of elements that a round reads.
struct Runs {
  explicit Runs(std::int64_t elements)
      : count(elements),
        parts(std::min(max_parts, elements)),
        part_length((elements + parts - 1) / parts),
        length((part_length + max_rounds - 1) / max_rounds),
        rounds((part_length + length - 1) / length) {
    // A step by the golden ratio spreads consecutive rounds evenly, so that runs of changed elements are met early.
    step = std::max<std::int64_t>(1, rounds * 618 / 1000);
    while (std::gcd(step, rounds) != 1) ++step;
  }
  std::int64_t begin(std::int64_t part, std::int64_t round) const {
    const std::int64_t run = (round % rounds * step + part * rounds / parts) % rounds;
    return count * part / parts + run * length;
  }

  std::int64_t count;
  std::int64_t parts;
  std::int64_t part_length;
  std::int64_t length;
  std::int64_t rounds;
  std::int64_t step = 1;
};

/// The place in memory of element `index`, in elements.
std::int64_t place_of(const at::Tensor& tensor, std::int64_t index) {
  std::int64_t place = 0;
  for (std::int64_t i = tensor.dim() - 1; i >= 0; --i) {
    place += index % tensor.size(i) * tensor.stride(i);
    index /= tensor.size(i);
  }
  return place;
}

}  // namespace

std::int64_t rounds_to_read_all(std::int64_t elements) {
  return elements == 0 ? 1 : Runs(elements).rounds;
}

std::uint64_t sampled_hash(const at::Tensor& tensor, std::int64_t round) {
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided || tensor.numel() == 0) return 0;
  // Rare: a parameter whose memory holds conjugated or negated values.
  if (tensor.is_conj() || tensor.is_neg()) return sampled_hash(tensor.detach().clone(), round);
  const Runs runs(tensor.numel());
  const std::size_t size = tensor.element_size();
  const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
  const bool dense = tensor.is_non_overlapping_and_dense();
  std::uint64_t hash = 0;
  for (std::int64_t part = 0; part < runs.parts; ++part) {
    const std::int64_t begin = runs.begin(part, round);
    const std::int64_t end = std::min(begin + runs.length, runs.count);
    if (dense) {
      if (begin >= end) continue;
      const auto run_bytes = static_cast<std::size_t>(end - begin) * size;
      hash = mix(hash, hash_bytes(bytes + static_cast<std::size_t>(begin) * size, run_bytes));
      continue;
    }
    for (std::int64_t i = begin; i < end; ++i) {
      hash = mix(hash, hash_bytes(bytes + static_cast<std::size_t>(place_of(tensor, i)) * size, size));
    }
  }
  return hash;
}

std::uint64_t hash_of_bytes(std::span<const std::byte> bytes) {
  return mix(bytes.size(), hash_bytes(bytes.data(), bytes.size()));
}

std::uint64_t combine(std::span<const std::uint64_t> hashes) {
  std::uint64_t combined = 0;
  for (const std::uint64_t hash : hashes) combined = mix(combined, hash);
  return combined;
}

}  // namespace tutti::sync
