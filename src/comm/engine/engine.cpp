#include "comm/engine/engine.h"

#include <numeric>

namespace tutti::comm {

std::vector<std::byte> Engine::meet(const Operation& operation, std::span<const std::byte> mine) {
  const auto exchange = start_exchange(operation, mine);
  const auto all = exchange->finish();
  return {all.begin(), all.end()};
}

std::shared_ptr<Engine> Engine::duplicate(const std::string& name, std::chrono::milliseconds timeout) {
  std::vector<int> everyone(static_cast<std::size_t>(size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  return connect_again(everyone, name, timeout);
}

}  // namespace tutti::comm
