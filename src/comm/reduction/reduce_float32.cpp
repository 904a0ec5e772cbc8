#include "comm/reduction/reduce_float32.h"

#include <algorithm>
#include <array>

#include "comm/reduction/reduce_tree.h"

namespace tutti::comm {
namespace {

// Small enough that the partial sum of a tree level stays in the L1 cache.
constexpr std::size_t float_chunk_elements = 1024;
using FloatChunk = std::array<float, float_chunk_elements>;

// The loops are inlined into one function for each instruction set and vectorized there.
[[gnu::always_inline]] inline void add(const float* a, const float* b, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

[[gnu::always_inline]] inline void scale_floats(float* values, std::size_t count, float divisor, float factor) {
  if (divisor != 1) {
    for (std::size_t i = 0; i < count; ++i) values[i] /= divisor;
  }
  if (factor != 1) {
    for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
  }
}

struct Instructions {
  void (*add)(const float* a, const float* b, float* out, std::size_t count);
  void (*scale_floats)(float* values, std::size_t count, float divisor, float factor);
};

#if defined(__x86_64__)
[[gnu::target("avx2")]] void add_avx2(const float* a, const float* b, float* out, std::size_t count) {
  add(a, b, out, count);
}
[[gnu::target("avx2")]] void scale_floats_avx2(float* values, std::size_t count, float divisor, float factor) {
  scale_floats(values, count, divisor, factor);
}
#endif
void add_any(const float* a, const float* b, float* out, std::size_t count) {
  add(a, b, out, count);
}
void scale_floats_any(float* values, std::size_t count, float divisor, float factor) {
  scale_floats(values, count, divisor, factor);
}

Instructions best_instructions() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return {add_avx2, scale_floats_avx2};
#endif
  return {add_any, scale_floats_any};
}

/// Sums elements `begin` to `begin + count` of `contributions`. Returns a pointer to the sum: into the contribution if
/// there is only one, else `out`.
const float* sum_float_subtree(const Instructions& instructions, std::span<const std::byte* const> contributions,
                               std::size_t begin, std::size_t count, float* out) {
  const auto values = [&](std::size_t i) { return reinterpret_cast<const float*>(contributions[i]) + begin; };
  if (contributions.size() == 1) return values(0);
  const std::size_t left = split_point(contributions.size());
  if (contributions.size() == 2) {
    instructions.add(values(0), values(1), out, count);
    return out;
  }
  FloatChunk left_sum;
  const float* a = sum_float_subtree(instructions, contributions.first(left), begin, count, left_sum.data());
  const float* b = sum_float_subtree(instructions, contributions.subspan(left), begin, count, out);
  instructions.add(a, b, out, count);
  return out;
}

}  // namespace

void reduce_float32(std::span<const std::byte* const> contributions, std::byte* result, std::size_t elements,
                    double divisor, double factor) {
  static const Instructions instructions = best_instructions();
  auto* const to = reinterpret_cast<float*>(result);
  FloatChunk sum;
  for (std::size_t begin = 0; begin < elements; begin += float_chunk_elements) {
    const std::size_t count = std::min(float_chunk_elements, elements - begin);
    // The sum is not written directly to the result, which may be a contribution that is still to be read.
    const float* done = sum_float_subtree(instructions, contributions, begin, count, sum.data());
    float* const out = to + begin;
    if (done != out) std::copy_n(done, count, out);
    instructions.scale_floats(out, count, static_cast<float>(divisor), static_cast<float>(factor));
  }
}

}  // namespace tutti::comm
