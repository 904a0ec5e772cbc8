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
  /// Keeps the positions at these places, which are ascending and disjoint, and may extend past the end.
  void keep(const std::vector<Interval>& places);
  const std::vector<Interval>& intervals() const { return intervals_; }

 private:
  std::vector<Interval> intervals_;
  std::int64_t size_;
};

/// Finds the position at a place. Fastest for ascending places.
class PositionLookup {
 public:
  explicit PositionLookup(const Positions& positions) : intervals_(positions.intervals()) {}
  /// `place` is less than the list's size.
  std::int64_t operator()(std::int64_t place);

 private:
  const std::vector<Interval>& intervals_;
  std::size_t at_ = 0;
  std::int64_t first_place_ = 0;  // the first place in interval `at_`
};

}  // namespace tutti
