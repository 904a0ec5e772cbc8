// The expected tables of DistributedSampler and randperm were printed by PyTorch 2.15.0.
#include "tutti/detail/data/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::shard_test {
namespace {

using Indices = std::vector<std::int64_t>;
using Table = std::vector<Indices>;  // by rank

Indices shard_indices(const ShardOptions& options, std::int64_t epoch, const std::vector<EpochSegment>& read = {}) {
  const Shard shard(options, epoch, read);
  Indices indices;
  for (std::int64_t number = 0; number < shard.size(); ++number) indices.push_back(shard[number]);
  return indices;
}

Table table(ShardOptions options, std::int64_t epoch = 0) {
  Table ranks;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    ranks.push_back(shard_indices(options, epoch));
    EXPECT_EQ(static_cast<std::int64_t>(ranks.back().size()), shard_size(options));
  }
  return ranks;
}

/// The samples that each rank reads after `read`.
Table rest_table(ShardOptions options, const std::vector<EpochSegment>& read) {
  Table ranks;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    ranks.push_back(shard_indices(options, 0, read));
    EXPECT_EQ(static_cast<std::int64_t>(ranks.back().size()), shard_size(options, read));
  }
  return ranks;
}

/// The micro-batches of each optimizer step, in rank order.
std::vector<Indices> windows(const ShardOptions& options, std::int64_t epoch = 0) {
  const auto ranks = table(options, epoch);
  const auto block = static_cast<std::size_t>(options.accumulation_steps * options.batch_size);
  std::vector<Indices> result;
  for (std::size_t begin = 0; begin < ranks[0].size(); begin += block) {
    auto& window = result.emplace_back();
    for (const auto& rank : ranks) {
      const auto end = std::min(begin + block, rank.size());
      window.insert(window.end(), rank.begin() + static_cast<std::ptrdiff_t>(begin),
                    rank.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  return result;
}

TEST(Interleaved, EqualsDistributedSampler) {
  EXPECT_EQ(table({.dataset_size = 10, .world_size = 3}), (Table{{0, 3, 6, 9}, {1, 4, 7, 0}, {2, 5, 8, 1}}));
  EXPECT_EQ(table({.dataset_size = 10, .world_size = 3, .drop_last = true}), (Table{{0, 3, 6}, {1, 4, 7}, {2, 5, 8}}));
  EXPECT_EQ(table({.dataset_size = 3, .world_size = 2, .drop_last = true}), (Table{{0}, {1}}));
  EXPECT_EQ(table({.dataset_size = 4, .world_size = 1}), (Table{{0, 1, 2, 3}}));
}

TEST(Interleaved, WrapsIfThereAreMoreRanksThanSamples) {
  EXPECT_EQ(table({.dataset_size = 2, .world_size = 5}), (Table{{0}, {1}, {0}, {1}, {0}}));
  EXPECT_EQ(table({.dataset_size = 2, .world_size = 5, .drop_last = true}), (Table{{}, {}, {}, {}, {}}));
  EXPECT_EQ(table({.dataset_size = 3, .world_size = 8, .shuffle = true, .seed = 1}),
            (Table{{1}, {2}, {0}, {1}, {2}, {0}, {1}, {2}}));
}

TEST(Interleaved, ShufflesAsDistributedSampler) {
  EXPECT_EQ(table({.dataset_size = 10, .world_size = 3, .shuffle = true}, 0),
            (Table{{4, 5, 0, 2}, {1, 3, 8, 4}, {7, 9, 6, 1}}));
  EXPECT_EQ(table({.dataset_size = 10, .world_size = 3, .shuffle = true}, 1),
            (Table{{5, 2, 9, 4}, {6, 0, 3, 5}, {1, 8, 7, 6}}));
  EXPECT_EQ(table({.dataset_size = 10, .world_size = 3, .shuffle = true, .seed = 7, .drop_last = true}, 2),
            (Table{{0, 7, 9}, {5, 6, 1}, {8, 2, 4}}));
}

TEST(Shuffle, EqualsRandperm) {
  const auto permutation = [](std::int64_t size, std::uint64_t seed) {
    return shard_indices({.dataset_size = size, .shuffle = true, .seed = seed}, 0);
  };
  EXPECT_EQ(permutation(10, 0), (Indices{4, 1, 7, 5, 3, 9, 0, 8, 6, 2}));
  EXPECT_EQ(permutation(10, 42), (Indices{2, 6, 1, 8, 4, 5, 0, 9, 3, 7}));
  EXPECT_EQ(permutation(10, (std::uint64_t{1} << 40) + 5), (Indices{1, 4, 9, 6, 3, 5, 0, 2, 8, 7}));
  const auto large = permutation(40000, 3);
  EXPECT_EQ(Indices(large.begin(), large.begin() + 5), (Indices{18986, 8643, 23819, 24255, 31316}));
  EXPECT_EQ(Indices(large.end() - 3, large.end()), (Indices{23266, 22103, 2345}));
}

TEST(Shuffle, SeedAndEpochAreAdded) {
  const ShardOptions options{.dataset_size = 100, .shuffle = true, .seed = 4};
  const ShardOptions next{.dataset_size = 100, .shuffle = true, .seed = 5};
  EXPECT_NE(shard_indices(options, 0), shard_indices(options, 1));
  EXPECT_EQ(shard_indices(options, 1), shard_indices(next, 0));
  EXPECT_EQ(shard_indices(options, 3), shard_indices(options, 3));
}

TEST(BlocksByWindow, RanksTakeContiguousBlocksOfEachWindow) {
  const ShardOptions options{.dataset_size = 16,
                             .world_size = 2,
                             .sharding = Sharding::blocks_by_window,
                             .batch_size = 2,
                             .accumulation_steps = 2};
  EXPECT_EQ(table(options), (Table{{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}}));
}

TEST(BlocksByWindow, StepsReadTheSameSamplesOnAnyNumberOfRanks) {
  for (const bool shuffle : {false, true}) {
    for (const bool drop_last : {false, true}) {
      const auto steps = [&](int world_size) {
        return windows({.dataset_size = 240,
                        .world_size = world_size,
                        .shuffle = shuffle,
                        .seed = 3,
                        .sharding = Sharding::blocks_by_window,
                        .drop_last = drop_last,
                        .batch_size = 3,
                        .accumulation_steps = 24 / world_size});
      };
      const auto alone = steps(1);
      EXPECT_EQ(alone.size(), 4u);
      EXPECT_EQ(alone.back().size(), 24u);  // a short last window: 8 micro-batches of 3
      for (const int world_size : {2, 4, 8}) EXPECT_EQ(steps(world_size), alone) << world_size << " ranks";
    }
  }
}

TEST(BlocksByWindow, ShortLastWindowIsFilledWithTheFirstSamples) {
  // 11 samples: a window of 8, then a micro-batch of 2 and a half one.
  ShardOptions options{.dataset_size = 11,
                       .world_size = 2,
                       .sharding = Sharding::blocks_by_window,
                       .batch_size = 2,
                       .accumulation_steps = 2};
  EXPECT_EQ(table(options), (Table{{0, 1, 2, 3, 8, 9}, {4, 5, 6, 7, 10, 0}}));
  options.drop_last = true;
  EXPECT_EQ(table(options), (Table{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  options.dataset_size = 12;
  EXPECT_EQ(table(options), (Table{{0, 1, 2, 3, 8, 9}, {4, 5, 6, 7, 10, 11}}));
}

TEST(BlocksByWindow, FewSamplesAreRepeatedMoreThanOnce) {
  const ShardOptions options{
      .dataset_size = 3, .world_size = 4, .sharding = Sharding::blocks_by_window, .batch_size = 2};
  EXPECT_EQ(table(options), (Table{{0, 1}, {2, 0}, {1, 2}, {0, 1}}));
}

TEST(BlocksByWindow, CoversEverySample) {
  for (std::int64_t size = 1; size < 60; ++size) {
    const auto ranks = table({.dataset_size = size,
                              .world_size = 3,
                              .shuffle = true,
                              .sharding = Sharding::blocks_by_window,
                              .batch_size = 2,
                              .accumulation_steps = 3});
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (const auto& rank : ranks) {
      for (const auto index : rank) seen.at(static_cast<std::size_t>(index)) = true;
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), false), 0) << size << " samples";
  }
}

TEST(RemainingSamples, InterleavedLeavesTheTailOnAnyNumberOfRanks) {
  const ShardOptions two{.dataset_size = 10, .world_size = 2, .batch_size = 2};
  const std::vector<EpochSegment> read{{.world_size = 2, .batch_size = 2, .accumulation_steps = 1, .batches = 1}};
  EXPECT_EQ(rest_table(two, read), (Table{{4, 6, 8}, {5, 7, 9}}));
  EXPECT_EQ(rest_table({.dataset_size = 10, .world_size = 4, .batch_size = 2}, read),
            (Table{{4, 8}, {5, 9}, {6, 0}, {7, 1}}));  // filled with the epoch's first samples
  EXPECT_EQ(rest_table({.dataset_size = 10, .world_size = 4, .drop_last = true, .batch_size = 2}, read),
            (Table{{4}, {5}, {6}, {7}}));
}

TEST(RemainingSamples, AnUnfinishedWindowLeavesGaps) {
  // Windows of 2 x 2 micro-batches of 1: {0 1 | 2 3} {4 5 | 6 7} {8 9 | 10 11}; three of each rank have been read.
  const std::vector<EpochSegment> read{{.world_size = 2, .batch_size = 1, .accumulation_steps = 2, .batches = 3}};
  ShardOptions options{
      .dataset_size = 12, .world_size = 2, .sharding = Sharding::blocks_by_window, .accumulation_steps = 2};
  EXPECT_EQ(rest_table(options, read), (Table{{5, 8, 9}, {7, 10, 11}}));
  options.accumulation_steps = 1;
  EXPECT_EQ(rest_table(options, read), (Table{{5, 8, 10}, {7, 9, 11}}));
  options.world_size = 1;
  EXPECT_EQ(rest_table(options, read), (Table{{5, 7, 8, 9, 10, 11}}));
}

TEST(RemainingSamples, AShortLastWindowLeavesEachRanksTail) {
  // 7 samples on 2 ranks, windows of 2 x 3: {0 1 2 | 3 4 5} {6 | 0}.
  ShardOptions options{
      .dataset_size = 7, .world_size = 2, .sharding = Sharding::blocks_by_window, .accumulation_steps = 3};
  const EpochSegment one{.world_size = 2, .batch_size = 1, .accumulation_steps = 3, .batches = 1};
  EXPECT_EQ(rest_table(options, {{one}}), (Table{{1, 2, 6}, {4, 5, 0}}));
  EpochSegment all = one;
  all.batches = 4;
  EXPECT_EQ(rest_table(options, {{all}}), (Table{{}, {}}));
  options.world_size = 1;
  EXPECT_EQ(rest_table(options, {{all}}), (Table{{}}));
  EXPECT_EQ(shard_batches(options, {{all}}), 0);
}

TEST(RemainingSamples, RefusesMoreBatchesThanTheEpochHas) {
  const std::vector<EpochSegment> read{{.world_size = 2, .batch_size = 2, .accumulation_steps = 1, .batches = 4}};
  EXPECT_THROW(shard_size({.dataset_size = 10}, read), UsageError);
}

TEST(Shard, RefusesInvalidOptions) {
  EXPECT_THROW(shard_indices({.dataset_size = 0}, 0), UsageError);
  EXPECT_THROW(shard_indices({.dataset_size = 4, .rank = 2, .world_size = 2}, 0), UsageError);
  EXPECT_THROW(shard_indices({.dataset_size = 4, .rank = -1, .world_size = 2}, 0), UsageError);
  EXPECT_THROW(shard_indices({.dataset_size = 4, .world_size = 0}, 0), UsageError);
  EXPECT_THROW(shard_indices({.dataset_size = 4, .batch_size = 0}, 0), UsageError);
  EXPECT_THROW(shard_indices({.dataset_size = 4, .accumulation_steps = 0}, 0), UsageError);
  EXPECT_THROW(shard_indices({.dataset_size = 4}, -1), UsageError);
}

// Nothing is stored for each sample: 2^60 of them are read.
TEST(Shard, OfAnOrderedDatasetNeedsNoMemory) {
  const std::int64_t samples = std::int64_t{1} << 60;
  const Shard shard({.dataset_size = samples, .rank = 1, .world_size = 4}, 0);
  EXPECT_EQ(shard.size(), samples / 4);
  EXPECT_EQ(shard[shard.size() - 1], samples - 3);
}

}  // namespace
}  // namespace tutti::shard_test
