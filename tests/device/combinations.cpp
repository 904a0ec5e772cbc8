#include "device/combinations.h"

#include <array>
#include <optional>
#include <set>

namespace tutti::test {
namespace {

using Pair = std::array<std::size_t, 4>;  // dimension a, value, dimension b > a, value
using Partial = std::vector<std::optional<std::size_t>>;

bool are_compatible(const Dimensions& dimensions, std::size_t a, std::size_t i, std::size_t b, std::size_t j) {
  return a < b ? dimensions.are_compatible(a, i, b, j) : dimensions.are_compatible(b, j, a, i);
}

Pair pair_of(std::size_t a, std::size_t i, std::size_t b, std::size_t j) {
  return a < b ? Pair{a, i, b, j} : Pair{b, j, a, i};
}

std::set<Pair> compatible_pairs(const Dimensions& dimensions) {
  std::set<Pair> pairs;
  for (std::size_t a = 0; a < dimensions.sizes.size(); ++a) {
    for (std::size_t b = a + 1; b < dimensions.sizes.size(); ++b) {
      if (!dimensions.must_meet(a, b)) continue;
      for (std::size_t i = 0; i < dimensions.sizes[a]; ++i) {
        for (std::size_t j = 0; j < dimensions.sizes[b]; ++j) {
          if (dimensions.are_compatible(a, i, b, j)) pairs.insert({a, i, b, j});
        }
      }
    }
  }
  return pairs;
}

bool fits(const Dimensions& dimensions, const Partial& partial, std::size_t dimension, std::size_t value) {
  for (std::size_t d = 0; d < partial.size(); ++d) {
    if (d != dimension && partial[d] && !are_compatible(dimensions, d, *partial[d], dimension, value)) return false;
  }
  return true;
}

std::size_t new_pairs(const std::set<Pair>& missing, const Partial& partial, std::size_t dimension, std::size_t value) {
  std::size_t count = 0;
  for (std::size_t d = 0; d < partial.size(); ++d) {
    if (d != dimension && partial[d]) count += missing.count(pair_of(d, *partial[d], dimension, value));
  }
  return count;
}

/// Fills the dimensions from `from` on, best value first; false if no value fits. `turn` is the value that wins a tie.
bool complete(const Dimensions& dimensions, const std::set<Pair>& missing, std::size_t turn, std::size_t from,
              Partial& partial) {
  while (from < partial.size() && partial[from]) ++from;
  if (from == partial.size()) return true;
  const std::size_t size = dimensions.sizes[from];
  std::set<std::size_t> tried;
  while (tried.size() < size) {
    std::optional<std::size_t> best;
    std::size_t most = 0;
    for (std::size_t offset = 0; offset < size; ++offset) {
      const std::size_t value = (turn + offset) % size;
      if (tried.contains(value)) continue;
      const std::size_t count = new_pairs(missing, partial, from, value);
      if (!best || count > most) best = value, most = count;
    }
    tried.insert(*best);
    if (!fits(dimensions, partial, from, *best)) continue;
    partial[from] = *best;
    if (complete(dimensions, missing, turn, from + 1, partial)) return true;
    partial[from].reset();
  }
  return false;
}

}  // namespace

bool is_allowed(const Dimensions& dimensions, const Combination& combination) {
  for (std::size_t a = 0; a < combination.size(); ++a) {
    for (std::size_t b = a + 1; b < combination.size(); ++b) {
      if (!dimensions.are_compatible(a, combination[a], b, combination[b])) return false;
    }
  }
  return true;
}

std::vector<Combination> all_pairs(const Dimensions& dimensions) {
  std::set<Pair> missing = compatible_pairs(dimensions);
  std::vector<Combination> combinations;
  while (!missing.empty()) {
    const Pair first = *missing.begin();
    Partial partial(dimensions.sizes.size());
    partial[first[0]] = first[1];
    partial[first[2]] = first[3];
    missing.erase(missing.begin());
    if (!complete(dimensions, missing, combinations.size(), 0, partial)) continue;
    Combination combination;
    for (const auto& value : partial) combination.push_back(*value);
    for (std::size_t a = 0; a < combination.size(); ++a) {
      for (std::size_t b = a + 1; b < combination.size(); ++b) missing.erase({a, combination[a], b, combination[b]});
    }
    combinations.push_back(std::move(combination));
  }
  return combinations;
}

}  // namespace tutti::test
