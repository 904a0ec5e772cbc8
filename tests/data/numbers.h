#pragma once
// A minimal user-defined dataset.
#include <cstddef>
#include <numeric>
#include <vector>

#include "tutti/data/data_loader.h"

namespace tutti::test {

/// Each sample is its own index.
class Numbers {
 public:
  explicit Numbers(int size) : size_(size) {}
  int size() const { return size_; }
  std::vector<int> get_batch(std::vector<std::size_t> indices) const { return {indices.begin(), indices.end()}; }

 private:
  int size_;
};

using Batches = std::vector<std::vector<int>>;

/// All batches of one loop.
template <typename Loader>
Batches read(Loader& loader) {
  Batches batches;
  for (const auto& batch : loader) batches.push_back(batch);
  return batches;
}

/// 0 .. count - 1.
inline std::vector<int> count_to(int count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace tutti::test
