#pragma once
// Compares texts that ranks have exchanged, line by line.
#include <cstddef>
#include <span>
#include <sstream>
#include <string>

namespace tutti {

/// "rank 0 has X where rank 1 has Y", for the first line that differs from that of rank 0; empty if all texts are
/// equal.
inline std::string first_different_line(std::span<const std::string> of_ranks) {
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank] == of_ranks[0]) continue;
    std::istringstream first(of_ranks[0]), other(of_ranks[rank]);
    std::string of_first, of_other;
    do {
      if (!std::getline(first, of_first)) of_first = "nothing";
      if (!std::getline(other, of_other)) of_other = "nothing";
    } while (of_first == of_other && of_first != "nothing");
    return "rank 0 has " + of_first + " where rank " + std::to_string(rank) + " has " + of_other;
  }
  return {};
}

}  // namespace tutti
