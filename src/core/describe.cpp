#include "core/describe.h"

namespace tutti {

std::string describe_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (const int& rank : ranks) text += (&rank == &ranks.front() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::string describe_duration(std::chrono::milliseconds duration) {
  const auto count = duration.count();
  return count % 1000 == 0 ? std::to_string(count / 1000) + " s" : std::to_string(count) + " ms";
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace tutti
