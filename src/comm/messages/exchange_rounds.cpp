#include "comm/messages/exchange_rounds.h"

#include <algorithm>

namespace tutti::comm {

std::vector<ExchangeRound> exchange_rounds(int rank, int size) {
  std::vector<ExchangeRound> rounds;
  for (int known = 1; known < size; known *= 2) {
    rounds.push_back({.to = (rank - known + size) % size,
                      .from = (rank + known) % size,
                      .first = static_cast<std::size_t>(known),
                      .count = static_cast<std::size_t>(std::min(known, size - known))});
  }
  return rounds;
}

}  // namespace tutti::comm
