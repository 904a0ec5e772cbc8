#include "comm/backend/backend.h"

#include <numeric>

namespace tutti::comm {

std::vector<std::byte> Backend::bootstrap_all_gather(const Operation& operation, std::span<const std::byte> input) {
  const auto exchange = start_small_all_gather(operation, input);
  const auto all = exchange->wait();
  return {all.begin(), all.end()};
}

std::shared_ptr<Backend> Backend::duplicate(const std::string& name, std::chrono::milliseconds timeout) {
  std::vector<int> all_ranks(static_cast<std::size_t>(size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  return split(all_ranks, name, timeout);
}

}  // namespace tutti::comm
