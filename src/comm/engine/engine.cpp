#include "comm/engine/engine.h"

namespace tutti::comm {

std::vector<std::byte> Engine::meet(const Operation& operation, std::span<const std::byte> mine) {
  const auto exchange = start_exchange(operation, mine);
  const auto all = exchange->finish();
  return {all.begin(), all.end()};
}

}  // namespace tutti::comm
