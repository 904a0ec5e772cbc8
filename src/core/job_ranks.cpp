#include "core/job_ranks.h"

#include <algorithm>
#include <utility>

#include "core/describe.h"

namespace tutti {

JobRanks::JobRanks(std::vector<int> by_rank) {
  int rank = 0;
  if (std::ranges::all_of(by_rank, [&](int number) { return number == rank++; })) return;
  std::vector<int> ascending = by_rank;
  std::ranges::sort(ascending);
  numbers_ = std::make_shared<const Numbers>(
      Numbers{.by_rank = std::move(by_rank), .group = " of the group of " + describe_ranks(ascending)});
}

std::string JobRanks::describe(std::vector<int> ranks) const {
  for (int& rank : ranks) rank = of(rank);
  std::ranges::sort(ranks);
  return describe_ranks(ranks);
}

}  // namespace tutti
