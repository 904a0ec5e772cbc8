#pragma once
// Combinations of values such that each pair of values occurs together.
//
// Cohen, Dalal, Fredman and Patton, "The AETG system: an approach to testing based on combinatorial design", IEEE
// Transactions on Software Engineering 23(7), 1997: a greedy choice of combinations. No I/O and no randomness.
#include <cstddef>
#include <functional>
#include <vector>

namespace tutti::test {

/// Dimension d has the values 0 .. sizes[d] - 1. A combination has one value of each dimension.
struct Dimensions {
  std::vector<std::size_t> sizes;
  /// True if value `i` of dimension `a` and value `j` of dimension `b` may occur together, for a < b. For each allowed
  /// pair there must be a combination of allowed pairs.
  std::function<bool(std::size_t a, std::size_t i, std::size_t b, std::size_t j)> are_compatible =
      [](std::size_t, std::size_t, std::size_t, std::size_t) { return true; };
  /// True if each compatible pair of values of dimensions `a` and `b` must occur, for a < b.
  std::function<bool(std::size_t a, std::size_t b)> must_meet = [](std::size_t, std::size_t) { return true; };
};

using Combination = std::vector<std::size_t>;

/// True if all pairs of values of the combination are compatible.
bool is_allowed(const Dimensions& dimensions, const Combination& combination);

/// Allowed combinations in which each compatible pair of values occurs, of two dimensions that must meet.
std::vector<Combination> all_pairs(const Dimensions& dimensions);

}  // namespace tutti::test
