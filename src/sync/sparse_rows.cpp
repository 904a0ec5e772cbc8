#include "sync/sparse_rows.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <cstring>

namespace tutti::sync {

namespace {

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

// The number of rows, their indices, their values. Nothing at all where there is no gradient.
std::vector<std::byte> pack_rows(const at::Tensor& gradient) {
  std::vector<std::byte> packed;
  if (!gradient.defined()) return packed;
  const at::NoGradGuard no_grad;
  const at::Tensor indices = gradient.indices().cpu().contiguous();
  const at::Tensor values = gradient.values().cpu().contiguous();
  const std::int64_t rows = indices.size(1);
  packed.resize(sizeof(rows));
  std::memcpy(packed.data(), &rows, sizeof(rows));
  for (const auto part : {bytes_of(indices), bytes_of(values)}) packed.insert(packed.end(), part.begin(), part.end());
  return packed;
}

at::Tensor sum_rows(std::span<const std::span<const std::byte>> of_ranks, const at::Tensor& parameter, double scale) {
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> shape = parameter.sizes().vec();
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> values;
  for (const std::span<const std::byte> packed : of_ranks) {
    if (packed.empty()) continue;
    const std::byte* next = packed.data();
    const auto read = [&next](void* to, std::size_t bytes) {
      if (bytes > 0) std::memcpy(to, next, bytes);
      next += bytes;
    };
    std::int64_t rows = 0;
    read(&rows, sizeof(rows));
    shape[0] = rows;
    indices.push_back(at::empty({1, rows}, at::kLong));
    values.push_back(at::empty(shape, at::TensorOptions(parameter.scalar_type())));
    for (const at::Tensor& part : {indices.back(), values.back()}) read(part.data_ptr(), part.nbytes());
  }
  if (indices.empty()) return {};
  const at::Tensor sum = at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values), parameter.sizes(),
                                               values.front().options().layout(at::kSparse));
  at::Tensor mean = sum.coalesce();
  mean.values().mul_(scale);
  return mean.to(parameter.device());
}

}  // namespace tutti::sync
