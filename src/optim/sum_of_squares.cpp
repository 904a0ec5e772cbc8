#include "optim/sum_of_squares.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

namespace tutti {

namespace {

// The order of additions must not depend on the number of threads, so blocks have a fixed length.
constexpr std::int64_t block_length = 1 << 16;
// Several sums in parallel, which the compiler vectorizes; one sum would wait for each addition. The square of a float
// is exact in double, so a fused multiply-add gives the same bits as a separate addition.
constexpr std::int64_t lanes = 16;

template <typename Element>
double sum_of_block(const Element* elements, std::int64_t count) {
  std::array<double, lanes> sums{};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const auto element = static_cast<double>(elements[i + lane]);
      sums[lane] += element * element;
    }
  }
  for (std::int64_t lane = 0; i < count; ++i, ++lane) {
    const auto element = static_cast<double>(elements[i]);
    sums[lane] += element * element;
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

double sum_of_squares(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  const std::int64_t count = dense.numel();
  std::vector<double> sums((count + block_length - 1) / block_length);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dense.scalar_type(), "sum_of_squares", [&] {
    const auto* elements = dense.const_data_ptr<scalar_t>();
    at::parallel_for(0, static_cast<std::int64_t>(sums.size()), 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t block = first; block < last; ++block) {
        const std::int64_t begin = block * block_length;
        sums[block] = sum_of_block(elements + begin, std::min(block_length, count - begin));
      }
    });
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace tutti
