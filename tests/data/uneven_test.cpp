// Data that do not fill all ranks, read without repeats. Ranks are loaders in one process that do not communicate.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "data/numbers.h"
#include "tutti/core/error.h"

namespace tutti::uneven_test {
namespace {

using test::Batches;
using test::count_to;
using test::Numbers;
using test::read;

struct ShardingCase {
  Sharding sharding = Sharding::interleaved;
  int samples = 0;
  std::int64_t batch_size = 1;
  int world_size = 1;
  std::int64_t accumulation_steps = 1;
  bool drop_last = false;
};

DataLoader<Numbers> loader_of(const ShardingCase& of, int rank, bool even_batches,
                              std::shared_ptr<LoaderStack> stack = std::make_shared<LoaderStack>()) {
  return {Numbers(of.samples),
          {.batch_size = of.batch_size,
           .shuffle = true,
           .sharding = of.sharding,
           .drop_last = of.drop_last,
           .even_batches = even_batches},
          rank,
          of.world_size,
          of.accumulation_steps,
          std::move(stack)};
}

std::vector<ShardingCase> sharding_cases() {
  std::vector<ShardingCase> all;
  for (const auto sharding : {Sharding::interleaved, Sharding::batches, Sharding::blocks_by_window}) {
    for (const int world_size : {1, 2, 3}) {
      for (int samples = 1; samples <= 40; samples += samples < 10 ? 1 : 7) {
        for (const std::int64_t batch_size : {1, 2, 3, 50}) {
          all.push_back({sharding, samples, batch_size, world_size, sharding == Sharding::blocks_by_window ? 3 : 1});
        }
      }
    }
  }
  return all;
}

std::string name_of(const ShardingCase& of) {
  return std::to_string(of.samples) + " samples in batches of " + std::to_string(of.batch_size) + " on " +
         std::to_string(of.world_size) + " ranks, sharding " + std::to_string(static_cast<int>(of.sharding));
}

TEST(Uneven, DropLastLeavesOutShortBatchesAsWithEvenBatches) {
  for (ShardingCase of : sharding_cases()) {
    of.drop_last = true;
    if (of.samples < of.world_size * of.batch_size) continue;  // no batch
    SCOPED_TRACE(name_of(of));
    for (int rank = 0; rank < of.world_size; ++rank) {
      auto uneven = loader_of(of, rank, false);
      auto even = loader_of(of, rank, true);
      const std::int64_t size = uneven.size();
      const auto batches = read(uneven);
      EXPECT_EQ(batches, read(even));
      EXPECT_EQ(size, static_cast<std::int64_t>(batches.size()));
      for (const auto& batch : batches) EXPECT_EQ(static_cast<std::int64_t>(batch.size()), of.batch_size);
    }
  }
}

TEST(Uneven, EverySampleIsReadOnce) {
  for (const ShardingCase& of : sharding_cases()) {
    SCOPED_TRACE(name_of(of));
    std::vector<int> all;
    for (int rank = 0; rank < of.world_size; ++rank) {
      auto loader = loader_of(of, rank, false);
      const auto batches = read(loader);
      EXPECT_EQ(static_cast<std::int64_t>(batches.size()), loader.size());
      for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, count_to(of.samples));
  }
}

// The batches of even sharding without repeats. Every rank knows whether the numbers of batches are equal.
TEST(Uneven, EqualsTheEvenShardingWithoutRepeats) {
  for (const ShardingCase& of : sharding_cases()) {
    SCOPED_TRACE(name_of(of));
    std::vector<std::size_t> counts;
    std::vector<bool> said;
    for (int rank = 0; rank < of.world_size; ++rank) {
      const auto stack = std::make_shared<LoaderStack>();
      auto even = loader_of(of, rank, true, stack);
      Batches expected;
      for (auto batch : even) {
        EXPECT_FALSE(stack->innermost().uneven || stack->innermost().filler);
        batch.resize(batch.size() - static_cast<std::size_t>(stack->innermost().repeated));
        if (!batch.empty()) expected.push_back(batch);
      }
      auto uneven = loader_of(of, rank, false, stack);
      Batches batches;
      bool says_uneven = false;
      for (const auto& batch : uneven) {
        batches.push_back(batch);
        EXPECT_EQ(stack->innermost().repeated, 0);
        says_uneven = stack->innermost().uneven;
      }
      EXPECT_EQ(batches, expected);
      counts.push_back(batches.size());
      if (!batches.empty()) said.push_back(says_uneven);
    }
    const bool differ =
        *std::max_element(counts.begin(), counts.end()) != *std::min_element(counts.begin(), counts.end());
    for (const bool says_uneven : said) EXPECT_EQ(says_uneven, differ);
    EXPECT_EQ(counts[0], *std::max_element(counts.begin(), counts.end()));
  }
}

TEST(JoinScope, AllRanksReceiveTheSameNumberOfBatches) {
  for (const ShardingCase& of : sharding_cases()) {
    SCOPED_TRACE(name_of(of));
    std::vector<int> all;
    std::int64_t rounds = -1;
    for (int rank = 0; rank < of.world_size; ++rank) {
      const auto stack = std::make_shared<LoaderStack>();
      auto loader = loader_of(of, rank, false, stack);
      const JoinScope join(stack);
      if (rounds < 0) rounds = loader.size();
      EXPECT_EQ(loader.size(), rounds);
      std::int64_t received = 0;
      bool has_data = true;
      for (const auto& batch : loader) {
        EXPECT_EQ(stack->at_last_batch(), ++received == rounds);
        EXPECT_FALSE(stack->innermost().uneven);
        EXPECT_FALSE(batch.empty());
        has_data = has_data && !stack->innermost().filler;  // filler batches come last
        EXPECT_EQ(stack->innermost().filler, !has_data);
        EXPECT_EQ(stack->innermost().repeated, has_data ? 0 : static_cast<std::int64_t>(batch.size()));
        if (has_data) all.insert(all.end(), batch.begin(), batch.end());
      }
      EXPECT_EQ(received, rounds);
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, count_to(of.samples));
  }
}

TEST(Uneven, ResumesAfterEveryBatch) {
  for (ShardingCase of :
       {ShardingCase{.sharding = Sharding::interleaved, .samples = 13, .batch_size = 2, .world_size = 3},
        ShardingCase{.sharding = Sharding::batches, .samples = 13, .batch_size = 2, .world_size = 3},
        ShardingCase{.sharding = Sharding::blocks_by_window,
        .samples = 13,
        .batch_size = 2,
        .world_size = 2,
        .accumulation_steps = 2}}) {
    SCOPED_TRACE(name_of(of));
    for (int rank = 0; rank < of.world_size; ++rank) {
      auto uninterrupted = loader_of(of, rank, false);
      const Batches first = read(uninterrupted);
      const Batches second = read(uninterrupted);
      // The state of rank 0, which reads the most; after its last batch no rank has samples left.
      auto interrupted = loader_of(of, 0, false);
      std::ptrdiff_t received = 0;
      for ([[maybe_unused]] const auto& batch : interrupted) {
        received = std::min<std::ptrdiff_t>(received + 1, static_cast<std::ptrdiff_t>(first.size()));
        auto resumed = loader_of(of, rank, false);
        resumed.load_state_dict(interrupted.state_dict());
        EXPECT_EQ(read(resumed), Batches(first.begin() + received, first.end()));
        EXPECT_EQ(read(resumed), second);
      }
    }
  }
}

TEST(Uneven, WithDropLastRanksAreEven) {
  ShardingCase of{.sharding = Sharding::batches, .samples = 13, .batch_size = 2, .world_size = 3, .drop_last = true};
  for (int rank = 0; rank < 3; ++rank) {
    auto even = loader_of(of, rank, true);
    auto uneven = loader_of(of, rank, false);
    EXPECT_EQ(read(even), read(uneven));
    EXPECT_EQ(even.size(), uneven.size());
  }
}

TEST(Uneven, ABatchLargerThanTheData) {
  for (int rank = 0; rank < 3; ++rank) {
    auto even = loader_of({.samples = 2, .batch_size = 50, .world_size = 3}, rank, true);
    EXPECT_EQ(read(even).size(), 1U);
    auto uneven = loader_of({.samples = 2, .batch_size = 50, .world_size = 3}, rank, false);
    EXPECT_EQ(read(uneven).size(), rank < 2 ? 1U : 0U);
    EXPECT_EQ(uneven.epoch(), 1);  // a loop without batches ends immediately
  }
}

TEST(SplitBatches, AStepReadsTheSameOnAnyNumberOfRanks) {
  const auto steps = [](int world_size, Sharding sharding) {
    Batches all;
    for (int rank = 0; rank < world_size; ++rank) {
      DataLoader<Numbers> loader(Numbers(50),
                                 {.batch_size = 12, .shuffle = true, .sharding = sharding, .split_batches = true}, rank,
                                 world_size);
      const auto own = read(loader);
      all.resize(own.size());
      for (std::size_t i = 0; i + 1 < own.size(); ++i) all[i].insert(all[i].end(), own[i].begin(), own[i].end());
    }
    all.pop_back();  // the last batch is filled with repeats
    for (auto& step : all) std::sort(step.begin(), step.end());
    return all;
  };
  for (const auto sharding : {Sharding::interleaved, Sharding::batches}) {
    for (const int world_size : {2, 3, 4}) EXPECT_EQ(steps(world_size, sharding), steps(1, sharding));
  }
}

TEST(SplitBatches, ResumesOnOtherNumbersOfRanks) {
  for (const auto sharding : {Sharding::interleaved, Sharding::batches}) {
    const auto loader = [&](int rank, int world_size) {
      return DataLoader<Numbers>(Numbers(48),
                                 {.batch_size = 6, .shuffle = true, .sharding = sharding, .split_batches = true}, rank,
                                 world_size);
    };
    std::vector<int> all;
    StateDict state;
    for (int rank = 0; rank < 2; ++rank) {
      auto interrupted = loader(rank, 2);
      for (const auto& batch : interrupted) {
        EXPECT_EQ(batch.size(), 3U);
        all.insert(all.end(), batch.begin(), batch.end());
        state = interrupted.state_dict();
        if (interrupted.cursor()->batch_index() == 3) break;
      }
    }
    for (int rank = 0; rank < 3; ++rank) {
      auto resumed = loader(rank, 3);
      resumed.load_state_dict(state);
      for (const auto& batch : resumed) {
        EXPECT_EQ(batch.size(), 2U);
        all.insert(all.end(), batch.begin(), batch.end());
      }
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, count_to(48));
  }
}

TEST(EmptyDataset, IsRefusedOnEveryRank) {
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THROW(loader_of({.samples = 0, .world_size = 3}, rank, true), UsageError);
    EXPECT_THROW(loader_of({.samples = 0, .world_size = 3}, rank, false), UsageError);
  }
}

}  // namespace
}  // namespace tutti::uneven_test
