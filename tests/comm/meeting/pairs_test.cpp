// One process, no store.
#include "comm/meeting/pairs.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tutti::comm::pairs_test {
namespace {

using Pairs = std::vector<Pair>;

TEST(Pairs, AreOfTheSamePlaceOnNodesSideBySide) {
  EXPECT_EQ(pairs_between_nodes({0, 0, 0}), Pairs{});
  EXPECT_EQ(pairs_between_nodes({0, 1}), (Pairs{{0, 1}}));
  EXPECT_EQ(pairs_between_nodes({0, 0, 1, 1}), (Pairs{{0, 2}, {1, 3}}));
  EXPECT_EQ(pairs_between_nodes({0, 1, 0, 1, 2, 2}), (Pairs{{0, 1}, {2, 3}, {1, 4}, {3, 5}, {0, 4}, {2, 5}}));
  // A node with fewer ranks: its first one.
  EXPECT_EQ(pairs_between_nodes({0, 0, 0, 1}), (Pairs{{0, 3}, {1, 3}, {2, 3}}));
}

TEST(Pairs, AreTwoOfARankHoweverManyNodesThereAre) {
  std::vector<int> nodes;
  for (int rank = 0; rank < 1024; ++rank) nodes.push_back(rank / 8);
  const auto pairs = pairs_between_nodes(nodes);
  EXPECT_EQ(pairs.size(), 1024U);
  for (int rank = 0; rank < 1024; ++rank) {
    ASSERT_EQ(std::ranges::count_if(pairs, [&](const Pair& pair) { return pair.has(rank); }), 2) << rank;
  }
}

TEST(Pairs, InsideANodeAreARing) {
  EXPECT_EQ(pairs_inside_nodes({0, 1}), Pairs{});
  EXPECT_EQ(pairs_inside_nodes({0, 0, 1, 1}), (Pairs{{0, 1}, {2, 3}}));
  EXPECT_EQ(pairs_inside_nodes({0, 0, 0}), (Pairs{{0, 1}, {1, 2}, {0, 2}}));
}

TEST(Pairs, AreOfCrewsUnderTheNumbersOfTheirFirstRanks) {
  const std::vector<int> nodes{0, 0, 1, 1};
  EXPECT_EQ(pairs_of_crews(nodes, {0, 0, 2, 2}), (Pairs{{0, 2}}));
  // Ranks in containers of their own: as many crews, of which those of a node look at one another too.
  EXPECT_EQ(pairs_of_crews(nodes, {0, 1, 2, 3}), (Pairs{{0, 2}, {1, 3}, {0, 1}, {2, 3}}));
  EXPECT_EQ(pairs_of_crews(nodes, {0, 0, 2, 3}), (Pairs{{0, 2}, {0, 3}, {2, 3}}));
  EXPECT_EQ(pairs_of_crews({0, 0}, {0, 0}), Pairs{});
}

TEST(Pairs, TheirNumberHoldsBeatsNewsAndGoodByes) {
  const PairNumber number(7 * PairNumber::beat + 3 * PairNumber::news);
  EXPECT_EQ(number.beats(), 7);
  EXPECT_EQ(number.news_so_far(), 3);
  EXPECT_FALSE(number.has_good_bye());
  const PairNumber last(7 * PairNumber::beat + 3 * PairNumber::news + 2 * PairNumber::good_bye);
  EXPECT_EQ(last.beats(), 7);
  EXPECT_EQ(last.news_so_far(), 3);
  EXPECT_TRUE(last.has_good_bye());
}

}  // namespace
}  // namespace tutti::comm::pairs_test
