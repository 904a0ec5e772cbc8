#include "comm/reduction/reduce_tree.h"

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

#include "comm/reduction/reduce_float32.h"

namespace tutti::comm {
namespace {

// Small enough to stay in cache from the first addition to the scaling, and not above ATen's grain size, so that the
// kernels run on the calling thread.
constexpr std::size_t reduce_chunk_elements = 32768;

/// The reduction of `views`, in `sum_dtype`. Never writes to a view.
at::Tensor reduce_subtree(std::span<const at::Tensor> views, at::ScalarType sum_dtype, ReduceOp op) {
  if (views.size() == 1) return views[0].to(sum_dtype);
  const std::size_t left = split_point(views.size());
  const at::Tensor a = reduce_subtree(views.first(left), sum_dtype, op);
  const at::Tensor b = reduce_subtree(views.subspan(left), sum_dtype, op);
  at::Tensor out = at::empty(a.sizes(), a.options());
  reduce_pair(out, a, b, op);
  return out;
}

}  // namespace

Reduction make_reduction(ReduceOp op, int size) {
  return {.op = op, .divisor = op == ReduceOp::mean ? static_cast<double>(size) : 1};
}

at::ScalarType dtype_of_sums(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

void reduce_pair(at::Tensor out, const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
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

void reduce_tree(std::span<const std::byte* const> contributions, std::byte* result, std::size_t elements,
                 at::ScalarType dtype, const Reduction& reduction) {
  if (dtype == at::kFloat && (reduction.op == ReduceOp::sum || reduction.op == ReduceOp::mean)) {
    reduce_float32(contributions, result, elements, reduction.divisor, reduction.factor);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const std::size_t width = c10::elementSize(dtype);
  const auto sum_dtype = dtype_of_sums(dtype);
  std::vector<at::Tensor> views(contributions.size());
  for (std::size_t begin = 0; begin < elements; begin += reduce_chunk_elements) {
    const auto length = static_cast<std::int64_t>(std::min(reduce_chunk_elements, elements - begin));
    const auto view = [&](const std::byte* memory) {
      return at::from_blob(const_cast<std::byte*>(memory) + begin * width, {length}, dtype);
    };
    std::ranges::transform(contributions, views.begin(), view);
    at::Tensor reduced = reduce_subtree(views, sum_dtype, reduction.op);
    if (reduction.divisor != 1) reduced.div_(reduction.divisor);
    if (reduction.factor != 1) reduced.mul_(reduction.factor);
    if (reduced.const_data_ptr() != result + begin * width) view(result).copy_(reduced);
  }
}

}  // namespace tutti::comm
