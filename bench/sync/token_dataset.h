#pragma once
// Rows of tokens as a map-style dataset, for loops that read through tutti::DataLoader.
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace tutti::bench {

class TokenDataset {
 public:
  using BatchType = at::Tensor;

  /// `rows`: int64 [sequences, context].
  explicit TokenDataset(at::Tensor rows) : rows_(std::move(rows)) {}

  at::Tensor get_batch(const std::vector<std::size_t>& indices) {
    const std::vector<std::int64_t> wanted(indices.begin(), indices.end());
    return rows_.index_select(0, at::tensor(wanted, at::kLong));
  }

  std::optional<std::size_t> size() const { return static_cast<std::size_t>(rows_.size(0)); }

 private:
  at::Tensor rows_;
};

}  // namespace tutti::bench
