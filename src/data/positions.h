#pragma once
// The positions of an epoch's order that have not been read, as intervals. Sharding leaves few gaps.
#include <cstdint>
#include <vector>

namespace tutti {

/// The half-open interval [begin, end).
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// An ascending list of positions. It is addressed by place: the first position has place 0.
class Positions {
 public:
  /// The positions 0 .. count - 1.
  explicit Positions(std::int64_t count);

  std::int64_t size() const { return size_; }
  /// The position at a place, which is less than size().
  std::int64_t operator[](std::int64_t place) const;
  /// Keeps the positions at these places, which are ascending and disjoint, and may extend past the end.
  void keep(const std::vector<Interval>& places);

 private:
  std::vector<Interval> intervals_;
  std::vector<std::int64_t> first_places_;  // of the intervals
  std::int64_t size_;
};

}  // namespace tutti
