#include "train/same_results.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "tracking/printed.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/detail/train/objects.h"

namespace tutti {

namespace {

// Ranks that compute from equal data may differ in the last digits, on other processors or numbers of threads.
constexpr double rounding = 1e-5;
// The sum of values of the size of 1 may be 0 but for rounding.
constexpr double rounding_at_zero = 1e-8;

bool same(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return true;
  const double tolerance = std::max(rounding * std::max(std::abs(a), std::abs(b)), rounding_at_zero);
  return std::isfinite(a) && std::isfinite(b) && std::abs(a - b) <= tolerance;
}

std::string name_at(const Scalars& results, std::size_t place) {
  return place < results.size() ? "'" + results[place].first + "'" : "no further one";
}

}  // namespace

Scalars agreed_results(const std::vector<Scalars>& of_ranks) {
  const Scalars& first = of_ranks.front();
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const Scalars& results = of_ranks[rank];
    for (std::size_t place = 0; place < std::max(first.size(), results.size()); ++place) {
      const std::string name = name_at(first, place);
      if (name != name_at(results, place)) {
        throw MismatchError("different evaluation results: rank 0 returns " + name + " where rank " +
                            std::to_string(rank) + " returns " + name_at(results, place) +
                            ". Return the same names in the same order on all ranks");
      }
      if (same(first[place].second, results[place].second)) continue;
      throw MismatchError("the evaluation result " + name + " is " + printed("%.9g", first[place].second) +
                          " on rank 0 and " + printed("%.9g", results[place].second) + " on rank " +
                          std::to_string(rank) +
                          ". Reduce it over the ranks in the evaluation function: accelerator.reduce(), or "
                          "gather_for_metrics() before it is computed");
    }
  }
  return first;
}

Scalars agreed_results(const Communicator& communicator, const Scalars& results) {
  std::vector<Scalars> of_ranks;
  for (const auto& bytes : communicator.all_gather_object(pack(results), comm::internal_call("evaluation results"))) {
    of_ranks.push_back(unpack<Scalars>(bytes));
  }
  return agreed_results(of_ranks);
}

}  // namespace tutti
