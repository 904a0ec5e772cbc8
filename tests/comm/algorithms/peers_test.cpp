// Ranks: none. The peers of ranks in groups of 2 to 65536 ranks.
#include "comm/algorithms/peers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

namespace tutti::test::peers_test {
namespace {

using comm::peers_of;

TEST(Peers, AreAllOtherRanksInSmallGroups) {
  EXPECT_EQ(peers_of(0, 2), std::vector<int>{1});
  EXPECT_EQ(peers_of(1, 4), (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(peers_of(7, 8).size(), 7U);
}

TEST(Peers, AreMutual) {
  for (int size = 2; size <= 140; ++size) {
    for (int rank = 0; rank < size; ++rank) {
      for (const int peer : peers_of(rank, size)) {
        EXPECT_NE(peer, rank);
        const auto back = peers_of(peer, size);
        EXPECT_TRUE(std::ranges::binary_search(back, rank)) << rank << " and " << peer << " of " << size;
      }
    }
  }
}

TEST(Peers, GrowWithTheLogarithm) {
  for (const int size : {9, 16, 100, 1000, 1024, 10'000, 65'535, 65'536}) {
    const auto log = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(size - 1)));
    for (int rank = 0; rank < size; rank += std::max(1, size / 500)) {
      EXPECT_LE(peers_of(rank, size).size(), 4 * log + 4) << rank << " of " << size;
    }
  }
}

}  // namespace
}  // namespace tutti::test::peers_test
