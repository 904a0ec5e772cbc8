#include "sync/sparse_rows.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "comm/tensor_checks.h"
#include "tutti/core/error.h"

namespace tutti::sync {

namespace {

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

struct Rows {
  at::Tensor indices;
  at::Tensor values;
};

[[noreturn]] void refuse(int rank, const std::string& why) {
  throw PeerError("rank " + std::to_string(rank) + " sent an invalid sparse gradient: " + why, {rank});
}

Rows unpack_rows(std::span<const std::byte> packed, const at::Tensor& parameter, int rank) {
  std::int64_t rows = -1;
  if (packed.size() >= sizeof(rows)) std::memcpy(&rows, packed.data(), sizeof(rows));
  const std::size_t row_bytes = sizeof(std::int64_t) + parameter[0].nbytes();
  const std::size_t rest = packed.size() - std::min(packed.size(), sizeof(rows));
  if (rows < 0 || rest % row_bytes != 0 || static_cast<std::uint64_t>(rows) != rest / row_bytes) {
    refuse(rank, std::to_string(packed.size()) + " bytes for " + std::to_string(rows) + " rows");
  }
  std::vector<std::int64_t> shape = parameter.sizes().vec();
  shape[0] = rows;
  Rows result{.indices = at::empty({1, rows}, at::kLong),
              .values = at::empty(shape, at::TensorOptions(parameter.scalar_type()))};
  const std::byte* next = packed.data() + sizeof(rows);
  for (const at::Tensor& part : {result.indices, result.values}) {
    if (part.nbytes() > 0) std::memcpy(part.data_ptr(), next, part.nbytes());
    next += part.nbytes();
  }
  const std::span<const std::int64_t> row(result.indices.const_data_ptr<std::int64_t>(),
                                          static_cast<std::size_t>(rows));
  if (std::ranges::any_of(row, [&](std::int64_t one) { return one < 0 || one >= parameter.size(0); })) {
    refuse(rank, "a row outside the parameter's " + std::to_string(parameter.size(0)) + " rows");
  }
  return result;
}

}  // namespace

// The number of rows, their indices, their values. No bytes if there is no gradient.
std::vector<std::byte> pack_rows(const at::Tensor& gradient) {
  std::vector<std::byte> packed;
  if (!gradient.defined()) return packed;
  const at::NoGradGuard no_grad;
  const at::Tensor indices = comm::plain_memory(gradient.indices().cpu());
  const at::Tensor values = comm::plain_memory(gradient.values().cpu());
  const std::int64_t rows = indices.size(1);
  packed.resize(sizeof(rows));
  std::memcpy(packed.data(), &rows, sizeof(rows));
  for (const auto part : {bytes_of(indices), bytes_of(values)}) packed.insert(packed.end(), part.begin(), part.end());
  return packed;
}

at::Tensor sum_rows(std::span<const std::span<const std::byte>> of_ranks, const at::Tensor& parameter, double scale) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> values;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank].empty()) continue;
    auto [own_indices, own_values] = unpack_rows(of_ranks[rank], parameter, static_cast<int>(rank));
    indices.push_back(std::move(own_indices));
    values.push_back(std::move(own_values));
  }
  if (indices.empty()) return {};
  const at::Tensor sum = at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values), parameter.sizes(),
                                               values.front().options().layout(at::kSparse));
  at::Tensor mean = sum.coalesce();
  mean.values().mul_(scale);
  return mean.to(parameter.device());
}

}  // namespace tutti::sync
