#include "core/describe.h"

namespace tutti {

std::string describe_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t max_listed_ranks = 8;
  std::string text;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (ranks.size() <= max_listed_ranks || last == first + 1) last = first;
    text += (first == 0 ? "" : ", ") + std::to_string(ranks[first]);
    if (last > first) text += " to " + std::to_string(ranks[last]);
    first = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string describe_duration(std::chrono::milliseconds duration) {
  const auto count = duration.count();
  return count % 1000 == 0 ? std::to_string(count / 1000) + " s" : std::to_string(count) + " ms";
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace tutti
