#include "comm/algorithms/bruck_schedule.h"

#include <algorithm>

namespace tutti::comm {

std::vector<BruckStep> bruck_schedule(int rank, int size) {
  std::vector<BruckStep> steps;
  for (int known = 1; known < size; known *= 2) {
    steps.push_back({.to = (rank - known + size) % size,
                     .from = (rank + known) % size,
                     .first = static_cast<std::size_t>(known),
                     .count = static_cast<std::size_t>(std::min(known, size - known))});
  }
  return steps;
}

}  // namespace tutti::comm
