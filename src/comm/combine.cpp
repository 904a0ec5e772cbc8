#include "comm/combine.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

#include <algorithm>

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
  }
}

void rescale_in_place(at::Tensor& values, const Rescale& rescale) {
  if (rescale.divisor != 1) values.div_(rescale.divisor);
  if (rescale.factor != 1) values.mul_(rescale.factor);
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
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const std::size_t width = c10::elementSize(dtype);
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  const auto sum_dtype = narrow ? at::kFloat : dtype;
  const auto length_of_sum = static_cast<std::int64_t>(std::min(elements, elements_at_once));
  at::Tensor sum;  // only where the result's memory cannot hold it: its own version is still to come
  if (narrow || versions.size() > 2) sum = at::empty({length_of_sum}, sum_dtype);

  for (std::size_t begin = 0; begin < elements; begin += elements_at_once) {
    const auto length = static_cast<std::int64_t>(std::min(elements_at_once, elements - begin));
    const auto view = [&](const std::byte* memory) {
      return at::from_blob(const_cast<std::byte*>(memory) + begin * width, {length}, dtype);
    };
    auto out = view(result);
    auto partial = sum.defined() ? sum.narrow(0, 0, length) : at::Tensor();
    if (narrow) {
      partial.copy_(view(versions[0]));
      for (std::size_t i = 1; i < versions.size(); ++i)
        combine_two(partial, partial, view(versions[i]), combination.op);
      rescale_in_place(partial, combination.rescale);
      out.copy_(partial);
      continue;
    }
    auto so_far = view(versions[0]);
    for (std::size_t i = 1; i < versions.size(); ++i) {
      auto& target = i + 1 == versions.size() ? out : partial;
      combine_two(target, so_far, view(versions[i]), combination.op);
      so_far = target;
    }
    if (versions.size() == 1 && versions[0] != result) out.copy_(so_far);
    rescale_in_place(out, combination.rescale);
  }
}

}  // namespace tutti::comm
