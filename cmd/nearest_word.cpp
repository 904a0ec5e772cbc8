#include "nearest_word.h"

#include <algorithm>
#include <numeric>

namespace tutti {
namespace {

constexpr std::size_t least_begin = 4;

/// Levenshtein's distance, row by row.
std::size_t distance_between(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::optional<std::string> nearest_word(const std::string& word, const std::vector<std::string>& known) {
  std::optional<std::string> nearest;
  std::size_t least = 0;
  for (const std::string& candidate : known) {
    const bool is_begin = word.size() > least_begin && candidate.starts_with(word);
    const std::size_t distance = is_begin ? 0 : distance_between(word, candidate);
    if (distance > candidate.size() / 3 || (nearest && distance >= least)) continue;
    nearest = candidate;
    least = distance;
  }
  return nearest;
}

}  // namespace tutti
