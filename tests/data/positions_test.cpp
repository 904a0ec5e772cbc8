#include "data/positions.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti::positions_test {
namespace {

std::vector<std::int64_t> listed(const Positions& positions) {
  std::vector<std::int64_t> list;
  for (std::int64_t place = 0; place < positions.size(); ++place) list.push_back(positions[place]);
  return list;
}

TEST(Positions, KeepThePositionsAtThePlaces) {
  Positions positions(10);
  positions.keep({{1, 3}, {5, 9}});
  EXPECT_EQ(listed(positions), (std::vector<std::int64_t>{1, 2, 5, 6, 7, 8}));
  positions.keep({{1, 4}, {5, 99}});
  EXPECT_EQ(listed(positions), (std::vector<std::int64_t>{2, 5, 6, 8}));
  positions.keep({{4, 9}, {9, 2}});
  EXPECT_EQ(positions.size(), 0);
}

}  // namespace
}  // namespace tutti::positions_test
