#include "comm/meeting/given_up.h"

#include <algorithm>
#include <sstream>

namespace tutti::comm {
namespace {

constexpr char silent_letter = 's';
constexpr char ended_letter = 'e';

void sort_each_once(std::vector<int>& ranks) {
  std::ranges::sort(ranks);
  const auto doubles = std::ranges::unique(ranks);
  ranks.erase(doubles.begin(), doubles.end());
}

}  // namespace

std::string GivenUp::to_entries() const {
  std::string entries;
  for (const int rank : silent) entries += silent_letter + std::to_string(rank) + "\n";
  for (const int rank : ended) entries += ended_letter + std::to_string(rank) + "\n";
  return entries;
}

GivenUp GivenUp::from_entries(const std::string& entries, int world_size) {
  GivenUp all;
  std::istringstream in(entries);
  char letter = 0;
  for (int rank = 0; in >> letter >> rank;) {
    if (rank < 0 || rank >= world_size) continue;
    if (letter == silent_letter) all.silent.push_back(rank);
    if (letter == ended_letter) all.ended.push_back(rank);
  }
  sort_each_once(all.silent);
  sort_each_once(all.ended);
  return all;
}

}  // namespace tutti::comm
