#include "comm/backend/describe.h"

#include <algorithm>
#include <cctype>

namespace tutti::comm {
namespace {

template <typename Numbers>
std::string join(const Numbers& numbers) {
  std::string text;
  for (const auto number : numbers) {
    if (!text.empty()) text += ", ";
    text += std::to_string(number);
  }
  return text;
}

}  // namespace

std::string describe_ranks(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(ranks);
}

std::string describe_duration(std::chrono::milliseconds duration) {
  const auto count = duration.count();
  return count % 1000 == 0 ? std::to_string(count / 1000) + " s" : std::to_string(count) + " ms";
}

std::string describe_tensor(const at::Tensor& tensor) {
  std::string dtype = c10::toString(tensor.scalar_type());
  std::transform(dtype.begin(), dtype.end(), dtype.begin(),
                 [](unsigned char character) { return std::tolower(character); });
  return dtype + " [" + join(tensor.sizes()) + "]";
}

}  // namespace tutti::comm
