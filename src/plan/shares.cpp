#include "plan/shares.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace tutti::plan {

std::vector<double> fair_shares(double cores, const std::vector<double>& demands) {
  std::vector<std::size_t> modest_first(demands.size());
  std::iota(modest_first.begin(), modest_first.end(), std::size_t{0});
  std::ranges::sort(modest_first, {}, [&](std::size_t thread) { return demands[thread]; });
  std::vector<double> shares(demands.size());
  std::size_t left = demands.size();
  for (const std::size_t thread : modest_first) {
    shares[thread] = std::min(demands[thread], cores / static_cast<double>(left));
    cores -= shares[thread];
    --left;
  }
  return shares;
}

}  // namespace tutti::plan
