#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tutti::test {

/// The largest difference of two elements; infinity if one is NaN, or if the lists differ in length.
inline double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = (a[i].detach() - b[i].detach()).abs().max().item<double>();
    if (std::isnan(difference)) return INFINITY;
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace tutti::test
