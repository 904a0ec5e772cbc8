// One process, no store.
#include "comm/health/heartbeat_pairs.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tutti::comm::heartbeat_pairs_test {
namespace {

using HeartbeatPairs = std::vector<HeartbeatPair>;

TEST(HeartbeatPairs, AreOfTheSameLocalRankOnNeighboringNodes) {
  EXPECT_EQ(pairs_between_nodes({0, 0, 0}), HeartbeatPairs{});
  EXPECT_EQ(pairs_between_nodes({0, 1}), (HeartbeatPairs{{0, 1}}));
  EXPECT_EQ(pairs_between_nodes({0, 0, 1, 1}), (HeartbeatPairs{{0, 2}, {1, 3}}));
  EXPECT_EQ(pairs_between_nodes({0, 1, 0, 1, 2, 2}), (HeartbeatPairs{{0, 1}, {2, 3}, {1, 4}, {3, 5}, {0, 4}, {2, 5}}));
  // A node has fewer ranks: its leader is paired with the remaining ranks of the larger node.
  EXPECT_EQ(pairs_between_nodes({0, 0, 0, 1}), (HeartbeatPairs{{0, 3}, {1, 3}, {2, 3}}));
}

TEST(HeartbeatPairs, AreTwoForEachRankOnAnyNumberOfNodes) {
  std::vector<int> nodes;
  for (int rank = 0; rank < 1024; ++rank) nodes.push_back(rank / 8);
  const auto pairs = pairs_between_nodes(nodes);
  EXPECT_EQ(pairs.size(), 1024U);
  for (int rank = 0; rank < 1024; ++rank) {
    ASSERT_EQ(std::ranges::count_if(pairs, [&](const HeartbeatPair& pair) { return pair.contains(rank); }), 2) << rank;
  }
}

TEST(HeartbeatPairs, InsideANodeFormARing) {
  EXPECT_EQ(pairs_inside_nodes({0, 1}), HeartbeatPairs{});
  EXPECT_EQ(pairs_inside_nodes({0, 0, 1, 1}), (HeartbeatPairs{{0, 1}, {2, 3}}));
  EXPECT_EQ(pairs_inside_nodes({0, 0, 0}), (HeartbeatPairs{{0, 1}, {1, 2}, {0, 2}}));
}

TEST(HeartbeatPairs, AreNamedAfterLeaders) {
  const std::vector<int> nodes{0, 0, 1, 1};
  EXPECT_EQ(pairs_between_leaders(nodes, {0, 0, 2, 2}), (HeartbeatPairs{{0, 2}}));
  // Ranks in separate containers have no local peers. Ranks of one node are paired with each other too.
  EXPECT_EQ(pairs_between_leaders(nodes, {0, 1, 2, 3}), (HeartbeatPairs{{0, 2}, {1, 3}, {0, 1}, {2, 3}}));
  EXPECT_EQ(pairs_between_leaders(nodes, {0, 0, 2, 3}), (HeartbeatPairs{{0, 2}, {0, 3}, {2, 3}}));
  EXPECT_EQ(pairs_between_leaders({0, 0}, {0, 0}), HeartbeatPairs{});
}

TEST(HeartbeatPairs, ACounterHoldsHeartbeatsUpdatesAndExits) {
  const PackedCounter number(7 * PackedCounter::heartbeat + 3 * PackedCounter::update);
  EXPECT_EQ(number.heartbeats(), 7);
  EXPECT_EQ(number.updates(), 3);
  EXPECT_FALSE(number.has_exited());
  const PackedCounter last(7 * PackedCounter::heartbeat + 3 * PackedCounter::update + 2 * PackedCounter::exited);
  EXPECT_EQ(last.heartbeats(), 7);
  EXPECT_EQ(last.updates(), 3);
  EXPECT_TRUE(last.has_exited());
}

}  // namespace
}  // namespace tutti::comm::heartbeat_pairs_test
