#include "sync/sampled_hash.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace tutti::sync {

namespace {

constexpr int samples_of_tensor = 16;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  // splitmix64's finalizer: every input bit affects every output bit.
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31);
}

}  // namespace

std::uint64_t sampled_hash(const at::Tensor& tensor, int salt) {
  const std::int64_t count = tensor.numel();
  if (!tensor.device().is_cpu() || count == 0 || !tensor.is_non_overlapping_and_dense()) return 0;
  const std::size_t size = tensor.element_size();
  const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
  std::uint64_t hash = 0;
  const std::int64_t samples = std::min<std::int64_t>(samples_of_tensor, count);
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t element = count * i / samples + (count / samples) * ((i * 7 + salt) % samples) / samples;
    std::uint64_t value = 0;
    std::memcpy(&value, bytes + static_cast<std::size_t>(element) * size, std::min(size, sizeof(value)));
    hash = mix(hash, value);
  }
  return hash;
}

std::uint64_t combine(std::span<const std::uint64_t> hashes) {
  std::uint64_t combined = 0;
  for (const std::uint64_t hash : hashes) combined = mix(combined, hash);
  return combined;
}

}  // namespace tutti::sync
