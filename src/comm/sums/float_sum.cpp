#include "comm/sums/float_sum.h"

#include <algorithm>
#include <array>
#include <vector>

#include "comm/sums/combine.h"

namespace tutti::comm {
namespace {

// A level of the tree stays in the first cache.
constexpr std::size_t floats_at_once = 1024;
using Partial = std::array<float, floats_at_once>;
using Versions = std::span<const float* const>;

// The loops are inlined into one function for each kind of processor and become its vector instructions.
[[gnu::always_inline]] inline void add(const float* a, const float* b, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

[[gnu::always_inline]] inline void rescale(float* values, std::size_t count, float divisor, float factor) {
  if (divisor != 1) {
    for (std::size_t i = 0; i < count; ++i) values[i] /= divisor;
  }
  if (factor != 1) {
    for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
  }
}

struct Instructions {
  void (*add)(const float* a, const float* b, float* out, std::size_t count);
  void (*rescale)(float* values, std::size_t count, float divisor, float factor);
};

#if defined(__x86_64__)
[[gnu::target("avx2")]] void add_avx2(const float* a, const float* b, float* out, std::size_t count) {
  add(a, b, out, count);
}
[[gnu::target("avx2")]] void rescale_avx2(float* values, std::size_t count, float divisor, float factor) {
  rescale(values, count, divisor, factor);
}
#endif
void add_any(const float* a, const float* b, float* out, std::size_t count) {
  add(a, b, out, count);
}
void rescale_any(float* values, std::size_t count, float divisor, float factor) {
  rescale(values, count, divisor, factor);
}

Instructions best_instructions() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return {add_avx2, rescale_avx2};
#endif
  return {add_any, rescale_any};
}

/// Where the sum of `versions` from `begin` on stands: a version itself, or `out`.
const float* sum_tree(const Instructions& instructions, Versions versions, std::size_t begin, std::size_t count,
                      float* out) {
  if (versions.size() == 1) return versions[0] + begin;
  const std::size_t left = left_of_tree(versions.size());
  if (versions.size() == 2) {
    instructions.add(versions[0] + begin, versions[1] + begin, out, count);
    return out;
  }
  Partial left_sum;
  const float* a = sum_tree(instructions, versions.first(left), begin, count, left_sum.data());
  const float* b = sum_tree(instructions, versions.subspan(left), begin, count, out);
  instructions.add(a, b, out, count);
  return out;
}

}  // namespace

void sum_floats(std::span<const std::byte* const> versions, std::byte* result, std::size_t elements, double divisor,
                double factor) {
  static const Instructions instructions = best_instructions();
  std::array<const float*, 64> few;
  std::vector<const float*> many;
  if (versions.size() > few.size()) many.resize(versions.size());
  const std::span<const float*> from = many.empty() ? std::span(few).first(versions.size()) : std::span(many);
  std::ranges::transform(versions, from.begin(),
                         [](const std::byte* memory) { return reinterpret_cast<const float*>(memory); });
  auto* const to = reinterpret_cast<float*>(result);
  Partial sum;
  for (std::size_t begin = 0; begin < elements; begin += floats_at_once) {
    const std::size_t count = std::min(floats_at_once, elements - begin);
    // Not straight into the result: it may be a version that is still to be read.
    const float* done = sum_tree(instructions, from, begin, count, sum.data());
    float* const out = to + begin;
    if (done != out) std::copy_n(done, count, out);
    instructions.rescale(out, count, static_cast<float>(divisor), static_cast<float>(factor));
  }
}

}  // namespace tutti::comm
