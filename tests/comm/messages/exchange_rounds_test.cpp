// Ranks: none. Who sends what to whom, for many ranks.
#include "comm/messages/exchange_rounds.h"

#include <gtest/gtest.h>

#include <bit>
#include <numeric>

namespace tutti::test::exchange_rounds_test {
namespace {

using namespace tutti::comm;

// Runs all rounds of all ranks: block i of rank r is whose it is.
TEST(ExchangeRounds, EveryRankHearsOfEveryOther) {
  constexpr int unknown = -1;
  for (int size = 1; size <= 70; ++size) {
    std::vector<std::vector<ExchangeRound>> rounds;
    std::vector<std::vector<int>> blocks;
    for (int rank = 0; rank < size; ++rank) {
      rounds.push_back(exchange_rounds(rank, size));
      blocks.emplace_back(size, unknown).front() = rank;
    }
    for (std::size_t number = 0; number < rounds.front().size(); ++number) {
      const auto before = blocks;
      for (int rank = 0; rank < size; ++rank) {
        const ExchangeRound& round = rounds[rank][number];
        EXPECT_EQ(rounds[round.from][number].to, rank);
        EXPECT_EQ(rounds[round.from][number].count, round.count);
        std::copy_n(before[round.from].begin(), round.count,
                    blocks[rank].begin() + static_cast<std::ptrdiff_t>(round.first));
      }
    }
    for (int rank = 0; rank < size; ++rank) {
      for (int i = 0; i < size; ++i) ASSERT_EQ(blocks[rank][i], (rank + i) % size) << rank << " of " << size;
    }
  }
}

TEST(ExchangeRounds, MessagesGrowWithTheLogarithmAndBytesAreNoMore) {
  for (int size = 2; size <= 65'536; size = size * 3 / 2 + 1) {
    for (const int rank : {0, 1, size / 2, size - 1}) {
      const auto rounds = exchange_rounds(rank, size);
      EXPECT_EQ(rounds.size(), std::bit_width(static_cast<unsigned>(size - 1))) << size;
      std::size_t known = 1;
      for (const auto& round : rounds) {
        EXPECT_LE(round.count, known) << "only what has come before is passed on";
        EXPECT_EQ(round.first, known);
        known += round.count;
      }
      EXPECT_EQ(known, static_cast<std::size_t>(size));
    }
  }
}

}  // namespace
}  // namespace tutti::test::exchange_rounds_test
