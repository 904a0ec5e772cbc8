#include "comm/sums/combine.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

#include <algorithm>

#include "comm/sums/float_sum.h"

namespace tutti::comm {
namespace {

// Small enough to stay in cache from the first addition to the rescaling, and not above ATen's grain size: the kernels
// then stay on the calling thread.
constexpr std::size_t elements_at_once = 32768;

void combine_two(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      at::add_out(out, a, b);
      return;
    case ReduceOp::min:
      at::minimum_out(out, a, b);
      return;
    case ReduceOp::max:
      at::maximum_out(out, a, b);
      return;
    case ReduceOp::product:
      at::mul_out(out, a, b);
      return;
    case ReduceOp::bit_and:
      at::bitwise_and_out(out, a, b);
      return;
    case ReduceOp::bit_or:
      at::bitwise_or_out(out, a, b);
      return;
    case ReduceOp::bit_xor:
      at::bitwise_xor_out(out, a, b);
      return;
  }
}

void rescale_in_place(at::Tensor& values, const Rescale& rescale) {
  if (rescale.divisor != 1) values.div_(rescale.divisor);
  if (rescale.factor != 1) values.mul_(rescale.factor);
}

/// The combination of `views`, in the dtype that sums are kept in. Never writes to a view.
at::Tensor combine_tree(std::span<const at::Tensor> views, at::ScalarType sum_dtype, ReduceOp op) {
  if (views.size() == 1) return views[0].to(sum_dtype);
  const std::size_t left = left_of_tree(views.size());
  const at::Tensor a = combine_tree(views.first(left), sum_dtype, op);
  const at::Tensor b = combine_tree(views.subspan(left), sum_dtype, op);
  at::Tensor out = at::empty(a.sizes(), a.options());
  combine_two(out, a, b, op);
  return out;
}

}  // namespace

Combination combination_of(ReduceOp op, int size) {
  Combination combination;
  combination.op = op;
  if (op == ReduceOp::mean) combination.rescale.divisor = size;
  return combination;
}

void combine(std::span<const std::byte* const> versions, std::byte* result, std::size_t elements, at::ScalarType dtype,
             const Combination& combination) {
  if (dtype == at::kFloat && (combination.op == ReduceOp::sum || combination.op == ReduceOp::mean)) {
    sum_floats(versions, result, elements, combination.rescale.divisor, combination.rescale.factor);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const std::size_t width = c10::elementSize(dtype);
  const auto sum_dtype = dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
  std::vector<at::Tensor> views(versions.size());
  for (std::size_t begin = 0; begin < elements; begin += elements_at_once) {
    const auto length = static_cast<std::int64_t>(std::min(elements_at_once, elements - begin));
    const auto view = [&](const std::byte* memory) {
      return at::from_blob(const_cast<std::byte*>(memory) + begin * width, {length}, dtype);
    };
    std::ranges::transform(versions, views.begin(), view);
    at::Tensor combined = combine_tree(views, sum_dtype, combination.op);
    rescale_in_place(combined, combination.rescale);
    if (combined.const_data_ptr() != result + begin * width) view(result).copy_(combined);
  }
}

}  // namespace tutti::comm
