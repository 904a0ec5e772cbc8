#include "data/positions.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tutti {

Positions::Positions(std::int64_t count) : size_(count) {
  if (count <= 0) return;
  intervals_.push_back({.begin = 0, .end = count});
  first_places_.push_back(0);
}

void Positions::keep(const std::vector<Interval>& places) {
  std::vector<Interval> kept;
  std::vector<std::int64_t> first_places;
  std::int64_t size = 0;
  std::int64_t first_place = 0;
  for (const Interval& here : intervals_) {
    const std::int64_t end_place = first_place + here.end - here.begin;
    for (const Interval& wanted : places) {
      const std::int64_t begin = std::max(wanted.begin, first_place);
      const std::int64_t end = std::min(wanted.end, end_place);
      if (begin >= end) continue;
      first_places.push_back(size);
      kept.push_back({.begin = here.begin + begin - first_place, .end = here.begin + end - first_place});
      size += end - begin;
    }
    first_place = end_place;
  }
  intervals_ = std::move(kept);
  first_places_ = std::move(first_places);
  size_ = size;
}

std::int64_t Positions::operator[](std::int64_t place) const {
  const auto interval = std::ranges::upper_bound(first_places_, place) - first_places_.begin() - 1;
  const auto at = static_cast<std::size_t>(interval);
  return intervals_[at].begin + place - first_places_[at];
}

}  // namespace tutti
