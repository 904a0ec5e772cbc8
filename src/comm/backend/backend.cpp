#include "comm/backend/backend.h"

#include "comm/backend/topology.h"

namespace tutti::comm {

std::vector<std::byte> Backend::bootstrap_all_gather(const Operation& operation, std::span<const std::byte> input) {
  const auto exchange = start_small_all_gather(operation, input);
  const auto all = exchange->wait();
  return {all.begin(), all.end()};
}

std::shared_ptr<Backend> Backend::duplicate(const std::string& name, std::chrono::milliseconds timeout) {
  return split(all_ranks(size()), name, timeout);
}

}  // namespace tutti::comm
