// Ranks: none. Simulates the schedules of 1 to 65536 ranks.
#include "comm/algorithms/bruck_schedule.h"

#include <gtest/gtest.h>

#include <bit>
#include <numeric>

namespace tutti::test::bruck_schedule_test {
namespace {

using namespace tutti::comm;

// Runs all steps of all ranks. blocks[r][i] is the rank whose contribution rank r holds as block i.
TEST(BruckSchedule, EveryRankReceivesEveryBlock) {
  constexpr int unknown = -1;
  for (int size = 1; size <= 70; ++size) {
    std::vector<std::vector<BruckStep>> schedules;
    std::vector<std::vector<int>> blocks;
    for (int rank = 0; rank < size; ++rank) {
      schedules.push_back(bruck_schedule(rank, size));
      blocks.emplace_back(size, unknown).front() = rank;
    }
    for (std::size_t number = 0; number < schedules.front().size(); ++number) {
      const auto before = blocks;
      for (int rank = 0; rank < size; ++rank) {
        const BruckStep& step = schedules[rank][number];
        EXPECT_EQ(schedules[step.from][number].to, rank);
        EXPECT_EQ(schedules[step.from][number].count, step.count);
        std::copy_n(before[step.from].begin(), step.count,
                    blocks[rank].begin() + static_cast<std::ptrdiff_t>(step.first));
      }
    }
    for (int rank = 0; rank < size; ++rank) {
      for (int i = 0; i < size; ++i) ASSERT_EQ(blocks[rank][i], (rank + i) % size) << rank << " of " << size;
    }
  }
}

TEST(BruckSchedule, MessagesGrowWithTheLogarithmAndBytesDoNotGrow) {
  for (int size = 2; size <= 65'536; size = size * 3 / 2 + 1) {
    for (const int rank : {0, 1, size / 2, size - 1}) {
      const auto schedules = bruck_schedule(rank, size);
      EXPECT_EQ(schedules.size(), std::bit_width(static_cast<unsigned>(size - 1))) << size;
      std::size_t known = 1;
      for (const auto& step : schedules) {
        EXPECT_LE(step.count, known) << "a step sends more blocks than earlier steps received";
        EXPECT_EQ(step.first, known);
        known += step.count;
      }
      EXPECT_EQ(known, static_cast<std::size_t>(size));
    }
  }
}

}  // namespace
}  // namespace tutti::test::bruck_schedule_test
