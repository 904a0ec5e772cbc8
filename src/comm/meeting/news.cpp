#include "comm/meeting/news.h"

#include <algorithm>
#include <sstream>

namespace tutti::comm {
namespace {

constexpr char silent_letter = 's';
constexpr char ended_letter = 'e';
constexpr char left_letter = 'l';

std::string entries_of(char letter, const std::vector<int>& ranks) {
  std::string entries;
  for (const int rank : ranks) entries += letter + std::to_string(rank) + "\n";
  return entries;
}

void sort_each_once(std::vector<int>& ranks) {
  std::ranges::sort(ranks);
  const auto doubles = std::ranges::unique(ranks);
  ranks.erase(doubles.begin(), doubles.end());
}

}  // namespace

std::string News::to_entries() const {
  return entries_of(silent_letter, silent) + entries_of(ended_letter, ended) + entries_of(left_letter, left);
}

News News::from_entries(const std::string& entries, int world_size) {
  News news;
  std::istringstream in(entries);
  char letter = 0;
  for (int rank = 0; in >> letter >> rank;) {
    if (rank < 0 || rank >= world_size) continue;
    if (letter == silent_letter) news.silent.push_back(rank);
    if (letter == ended_letter) news.ended.push_back(rank);
    if (letter == left_letter) news.left.push_back(rank);
  }
  for (auto* ranks : {&news.silent, &news.ended, &news.left}) sort_each_once(*ranks);
  return news;
}

}  // namespace tutti::comm
