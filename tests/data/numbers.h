#pragma once
// The least that a dataset of a user has.
#include <cstddef>
#include <vector>

#include "tutti/data/data_loader.h"

namespace tutti::test {

/// The samples are their own indices.
class Numbers {
 public:
  explicit Numbers(int size) : size_(size) {}
  int size() const { return size_; }
  std::vector<int> get_batch(std::vector<std::size_t> indices) const { return {indices.begin(), indices.end()}; }

 private:
  int size_;
};

using Batches = std::vector<std::vector<int>>;

/// A whole loop.
inline Batches read(DataLoader<Numbers>& loader) {
  Batches batches;
  for (const auto& batch : loader) batches.push_back(batch);
  return batches;
}

}  // namespace tutti::test
