#include "local_sgd/fragment_plan.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "tutti/core/error.h"

namespace tutti::local_sgd {

// Avoids a product of two large numbers, which could overflow.
ElementRange part_of(std::int64_t elements, std::int64_t part, std::int64_t parts) {
  const std::int64_t share = elements / parts;
  const std::int64_t longer = elements % parts;  // the first `longer` parts have one more element
  return {.begin = part * share + std::min(part, longer), .length = share + (part < longer ? 1 : 0)};
}

std::vector<FragmentPlan> plan_fragments(std::span<const std::int64_t> sizes, int fragments) {
  const std::int64_t elements = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (elements < fragments) {
    throw UsageError("Local SGD: " + std::to_string(fragments) + " fragments of a model with " +
                     std::to_string(elements) + " trained elements: each fragment needs at least one element");
  }
  std::vector<FragmentPlan> plans;
  std::size_t parameter = 0;
  std::int64_t used = 0;  // elements of the current parameter that are assigned
  for (int fragment = 0; fragment < fragments; ++fragment) {
    const std::int64_t length = part_of(elements, fragment, fragments).length;
    FragmentPlan& plan = plans.emplace_back();
    while (plan.elements < length) {
      const std::int64_t take = std::min(length - plan.elements, sizes[parameter] - used);
      if (take > 0) {
        plan.pieces.push_back(
            {.parameter = static_cast<int>(parameter), .offset = used, .length = take, .begin = plan.elements});
      }
      plan.elements += take;
      used += take;
      if (used == sizes[parameter]) {
        ++parameter;
        used = 0;
      }
    }
  }
  return plans;
}

std::vector<ElementRange> plan_messages(std::int64_t elements, std::int64_t cap) {
  std::vector<ElementRange> ranges;
  for (std::int64_t begin = 0; begin < elements; begin += cap) {
    ranges.push_back({.begin = begin, .length = std::min(cap, elements - begin)});
  }
  return ranges;
}

}  // namespace tutti::local_sgd
