#include "data/positions.h"

#include <algorithm>

namespace tutti {

Positions::Positions(std::int64_t count) : size_(count) {
  if (count > 0) intervals_.push_back({.begin = 0, .end = count});
}

void Positions::keep(const std::vector<Interval>& places) {
  std::vector<Interval> kept;
  std::int64_t size = 0;
  std::int64_t first_place = 0;
  for (const Interval& here : intervals_) {
    const std::int64_t end_place = first_place + here.end - here.begin;
    for (const Interval& wanted : places) {
      const std::int64_t begin = std::max(wanted.begin, first_place);
      const std::int64_t end = std::min(wanted.end, end_place);
      if (begin >= end) continue;
      kept.push_back({.begin = here.begin + begin - first_place, .end = here.begin + end - first_place});
      size += end - begin;
    }
    first_place = end_place;
  }
  intervals_ = std::move(kept);
  size_ = size;
}

std::int64_t PositionLookup::operator()(std::int64_t place) {
  if (place < first_place_) {
    at_ = 0;
    first_place_ = 0;
  }
  while (place - first_place_ >= intervals_[at_].end - intervals_[at_].begin) {
    first_place_ += intervals_[at_].end - intervals_[at_].begin;
    ++at_;
  }
  return intervals_[at_].begin + place - first_place_;
}

}  // namespace tutti
