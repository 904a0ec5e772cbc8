#pragma once
// Which positions of an epoch's order are still to be read, as intervals: dealing leaves few holes.
#include <cstdint>
#include <vector>

namespace tutti {

/// From `begin` up to, not including, `end`.
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// An ascending list of positions. It is addressed by place: the first position has place 0.
class Positions {
 public:
  /// 0 .. count - 1.
  explicit Positions(std::int64_t count);

  std::int64_t size() const { return size_; }
  /// Keeps what stands at these places, which are ascending, disjoint, and may reach beyond the end.
  void keep(const std::vector<Interval>& places);
  const std::vector<Interval>& intervals() const { return intervals_; }

 private:
  std::vector<Interval> intervals_;
  std::int64_t size_;
};

/// Finds the position at a place. Places that ascend are found fastest.
class PositionLookup {
 public:
  explicit PositionLookup(const Positions& positions) : intervals_(positions.intervals()) {}
  /// `place` is less than the list's size.
  std::int64_t operator()(std::int64_t place);

 private:
  const std::vector<Interval>& intervals_;
  std::size_t at_ = 0;
  std::int64_t first_place_ = 0;  // of interval `at_`
};

}  // namespace tutti
