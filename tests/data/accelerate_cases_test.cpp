// The tables of Accelerate's sampler tests (tests/test_data_loader.py, test_distributed_data_loop.py), on two and three
// ranks. Ranks are loaders in one process that do not communicate.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "data/numbers.h"
#include "tutti/core/error.h"

namespace tutti::accelerate_cases_test {
namespace {

using test::Batches;
using test::Numbers;
using test::read;
using Table = std::vector<Batches>;  // by rank

Table table(int samples, const DataLoaderOptions& options, int world_size = 2) {
  Table ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    DataLoader<Numbers> loader(Numbers(samples), options, rank, world_size);
    ranks.push_back(read(loader));
    EXPECT_EQ(static_cast<std::int64_t>(ranks.back().size()), loader.size());
  }
  return ranks;
}

DataLoaderOptions whole_batches(std::int64_t batch_size, bool drop_last = false, bool even_batches = true) {
  return {
      .batch_size = batch_size, .sharding = Sharding::batches, .drop_last = drop_last, .even_batches = even_batches};
}

DataLoaderOptions split(std::int64_t batch_size, bool drop_last = false, bool even_batches = true) {
  DataLoaderOptions options = whole_batches(batch_size, drop_last, even_batches);
  options.split_batches = true;
  return options;
}

const Table rounds_of_three = {{{0, 1, 2}, {6, 7, 8}, {12, 13, 14}}, {{3, 4, 5}, {9, 10, 11}, {15, 16, 17}}};
const Table rounds_of_split_four = {{{0, 1}, {4, 5}, {8, 9}, {12, 13}, {16, 17}},
                                    {{2, 3}, {6, 7}, {10, 11}, {14, 15}, {18, 19}}};

/// `rounds` with one more batch on each rank, unless that batch is empty.
Table with(Table rounds, const Batches& last) {
  for (std::size_t rank = 0; rank < rounds.size(); ++rank) {
    if (!last[rank].empty()) rounds[rank].push_back(last[rank]);
  }
  return rounds;
}

TEST(BatchSamplerShard, WithNoSplits) {
  EXPECT_EQ(table(24, whole_batches(3)), with(rounds_of_three, {{18, 19, 20}, {21, 22, 23}}));
  EXPECT_EQ(table(24, whole_batches(3, true)), with(rounds_of_three, {{18, 19, 20}, {21, 22, 23}}));
  EXPECT_EQ(table(21, whole_batches(3)), with(rounds_of_three, {{18, 19, 20}, {0, 1, 2}}));
  EXPECT_EQ(table(21, whole_batches(3, true)), rounds_of_three);
  EXPECT_EQ(table(22, whole_batches(3)), with(rounds_of_three, {{18, 19, 20}, {21, 0, 1}}));
  EXPECT_EQ(table(22, whole_batches(3, true)), rounds_of_three);
  EXPECT_EQ(table(20, whole_batches(3)), with(rounds_of_three, {{18, 19, 0}, {1, 2, 3}}));
  EXPECT_EQ(table(20, whole_batches(3, true)), rounds_of_three);
  EXPECT_EQ(table(2, whole_batches(3)), (Table{{{0, 1, 0}}, {{1, 0, 1}}}));
  EXPECT_THROW(table(2, whole_batches(3, true)), UsageError);  // in Accelerate the loop is silently empty
}

TEST(BatchSamplerShard, WithSplits) {
  EXPECT_EQ(table(24, split(4)), with(rounds_of_split_four, {{20, 21}, {22, 23}}));
  EXPECT_EQ(table(24, split(4, true)), with(rounds_of_split_four, {{20, 21}, {22, 23}}));
  EXPECT_EQ(table(22, split(4)), with(rounds_of_split_four, {{20, 21}, {0, 1}}));
  EXPECT_EQ(table(22, split(4, true)), rounds_of_split_four);
  EXPECT_EQ(table(21, split(4)), with(rounds_of_split_four, {{20, 0}, {1, 2}}));
  EXPECT_EQ(table(21, split(4, true)), rounds_of_split_four);
  EXPECT_EQ(table(2, split(4)), (Table{{{0, 1}}, {{0, 1}}}));
  EXPECT_THROW(table(2, split(4, true)), UsageError);
}

TEST(BatchSamplerShard, WithNoSplitsNoEven) {
  EXPECT_EQ(table(24, whole_batches(3, false, false)), with(rounds_of_three, {{18, 19, 20}, {21, 22, 23}}));
  EXPECT_EQ(table(24, whole_batches(3, true, false)), with(rounds_of_three, {{18, 19, 20}, {21, 22, 23}}));
  EXPECT_EQ(table(21, whole_batches(3, false, false)), with(rounds_of_three, {{18, 19, 20}, {}}));
  EXPECT_EQ(table(21, whole_batches(3, true, false)), rounds_of_three);
  EXPECT_EQ(table(22, whole_batches(3, false, false)), with(rounds_of_three, {{18, 19, 20}, {21}}));
  EXPECT_EQ(table(22, whole_batches(3, true, false)), rounds_of_three);
  EXPECT_EQ(table(20, whole_batches(3, false, false)), with(rounds_of_three, {{18, 19}, {}}));
  EXPECT_EQ(table(20, whole_batches(3, true, false)), rounds_of_three);
  EXPECT_EQ(table(2, whole_batches(3, false, false)), (Table{{{0, 1}}, {}}));
}

TEST(BatchSamplerShard, WithSplitsNoEven) {
  EXPECT_EQ(table(24, split(4, false, false)), with(rounds_of_split_four, {{20, 21}, {22, 23}}));
  EXPECT_EQ(table(24, split(4, true, false)), with(rounds_of_split_four, {{20, 21}, {22, 23}}));
  EXPECT_EQ(table(22, split(4, false, false)), with(rounds_of_split_four, {{20, 21}, {}}));
  EXPECT_EQ(table(22, split(4, true, false)), rounds_of_split_four);
  EXPECT_EQ(table(21, split(4, false, false)), with(rounds_of_split_four, {{20}, {}}));
  EXPECT_EQ(table(21, split(4, true, false)), rounds_of_split_four);
  EXPECT_EQ(table(2, split(4, false, false)), (Table{{{0, 1}}, {}}));
}

DataLoaderOptions batches(std::vector<std::vector<std::int64_t>> given, bool even_batches, bool drop_last = false) {
  return {
      .drop_last = drop_last, .even_batches = even_batches, .batch_sampler = [given](std::int64_t) { return given; }};
}

TEST(BatchSamplerShard, WithVaryingBatchSizes) {
  const std::vector<std::vector<std::int64_t>> four = {{0, 1, 2}, {3, 4}, {5, 6, 7, 8}, {9, 10, 11}};
  auto five = four;
  five.push_back({12, 13});
  const Table even = {{{0, 1, 2}, {5, 6, 7, 8}}, {{3, 4}, {9, 10, 11}}};
  EXPECT_EQ(table(14, batches(five, false)), with(even, {{12, 13}, {}}));
  EXPECT_EQ(table(14, batches(four, true)), even);
  EXPECT_EQ(table(14, batches(five, true)), with(even, {{12, 13}, {0, 1, 2}}));
  EXPECT_EQ(table(14, batches({{0, 1, 2}}, true)), (Table{{{0, 1, 2}}, {{0, 1, 2}}}));
  EXPECT_EQ(table(14, batches({{0, 1, 2}}, true), 3), (Table{{{0, 1, 2}}, {{0, 1, 2}}, {{0, 1, 2}}}));
  EXPECT_EQ(table(14, batches(five, true, true)), even);
}

TEST(BatchSamplerShard, WithVaryingBatchSizesOnThreeRanks) {
  const std::vector<std::vector<std::int64_t>> six = {{0}, {1, 2}, {3, 4, 5}, {6}, {7, 8}, {9, 10, 11}};
  auto seven = six;
  seven.push_back({12, 13});
  const Table even = {{{0}, {6}}, {{1, 2}, {7, 8}}, {{3, 4, 5}, {9, 10, 11}}};
  EXPECT_EQ(table(14, batches(six, true), 3), even);
  EXPECT_EQ(table(14, batches(seven, true), 3), with(even, {{12, 13}, {0}, {1, 2}}));
  EXPECT_EQ(table(14, batches(seven, false), 3), with(even, {{12, 13}, {}, {}}));
}

TEST(SplitBatches, IsRefusedIfBatchesCannotBeSplit) {
  EXPECT_THROW(table(20, split(3)), UsageError);
  DataLoaderOptions both = batches({{0, 1, 2, 3}, {4, 5, 6, 7}}, true);
  both.split_batches = true;
  EXPECT_THROW(table(8, both), UsageError);
}

std::vector<std::vector<std::size_t>> batch_sizes(int samples, const DataLoaderOptions& options) {
  std::vector<std::vector<std::size_t>> sizes;
  for (const Batches& rank : table(samples, options)) {
    auto& own = sizes.emplace_back();
    for (const auto& batch : rank) own.push_back(batch.size());
  }
  return sizes;
}

using Sizes = std::vector<std::vector<std::size_t>>;

TEST(DistributedDataLoop, DefaultEnsuresEvenBatchSizes) {
  for (const auto sharding : {Sharding::interleaved, Sharding::batches, Sharding::blocks_by_window}) {
    EXPECT_EQ(batch_sizes(3, {.batch_size = 1, .sharding = sharding}), (Sizes{{1, 1}, {1, 1}}));
    EXPECT_EQ(batch_sizes(7, {.batch_size = 2, .sharding = sharding}), (Sizes{{2, 2}, {2, 2}}));
  }
}

TEST(DistributedDataLoop, EvenBatchesCanBeDisabled) {
  for (const auto sharding : {Sharding::interleaved, Sharding::batches, Sharding::blocks_by_window}) {
    EXPECT_EQ(batch_sizes(3, {.batch_size = 1, .sharding = sharding, .even_batches = false}), (Sizes{{1, 1}, {1}}));
    EXPECT_EQ(batch_sizes(7, {.batch_size = 2, .sharding = sharding, .even_batches = false}), (Sizes{{2, 2}, {2, 1}}));
  }
}

TEST(DistributedDataLoop, JoinCanOverrideEvenBatches) {
  const auto stack = std::make_shared<LoaderStack>();
  const auto batches_of = [&stack](bool even_batches, int rank) {
    DataLoader<Numbers> loader(Numbers(3), {.batch_size = 1, .even_batches = even_batches}, rank, 2, 1, stack);
    Batches own;
    for (const auto& batch : loader) {
      if (stack->innermost().repeated == 0) own.push_back(batch);
    }
    return own;
  };
  EXPECT_EQ(stack->tail(true), EpochTail::repeat);
  EXPECT_EQ(stack->tail(false), EpochTail::shorten);
  {
    const JoinScope outer(stack);
    EXPECT_EQ(stack->tail(true), EpochTail::repeat);
    EXPECT_EQ(stack->tail(false), EpochTail::join);
    const JoinScope inner(stack, false);
    EXPECT_EQ(stack->tail(true), EpochTail::join);
    EXPECT_EQ(batches_of(true, 0), (Batches{{0}, {2}}));
    EXPECT_EQ(batches_of(true, 1), (Batches{{1}}));
    const JoinScope innermost(stack, true);
    EXPECT_EQ(stack->tail(false), EpochTail::repeat);
  }
  EXPECT_EQ(stack->tail(true), EpochTail::repeat);
  EXPECT_EQ(stack->tail(false), EpochTail::shorten);
}

// 22 samples on two ranks: gathered without repeats, they are the dataset in order.
TEST(DistributedDataLoop, LeavingOutRepeatsGathersEverySampleOnce) {
  for (const auto sharding : {Sharding::interleaved, Sharding::batches, Sharding::blocks_by_window}) {
    for (const int world_size : {1, 2, 3}) {
      std::vector<std::vector<int>> rounds;
      for (int rank = 0; rank < world_size; ++rank) {
        const auto stack = std::make_shared<LoaderStack>();
        DataLoader<Numbers> loader(Numbers(22), {.batch_size = 4, .sharding = sharding}, rank, world_size, 1, stack);
        std::size_t round = 0;
        for (auto batch : loader) {
          batch.resize(batch.size() - static_cast<std::size_t>(stack->innermost().repeated));
          if (rank == 0) rounds.emplace_back();
          rounds.at(round).insert(rounds.at(round).end(), batch.begin(), batch.end());
          ++round;
        }
      }
      std::vector<int> gathered;
      for (auto& round : rounds) {
        std::sort(round.begin(), round.end());
        gathered.insert(gathered.end(), round.begin(), round.end());
      }
      EXPECT_EQ(gathered, test::count_to(22)) << world_size << " ranks";
    }
  }
}

TEST(SkipFirstBatches, IsAcceleratesTable) {
  DataLoader<Numbers> loader(Numbers(16), {.batch_size = 4});
  loader.skip_first_batches(2);
  EXPECT_EQ(read(loader), (Batches{{8, 9, 10, 11}, {12, 13, 14, 15}}));
}

// test_skip_first_batches_preserves_iteration and _preserves_loader_config, in which Accelerate creates a new loader.
TEST(SkipFirstBatches, KeepsTheEpochAndTheOptions) {
  const DataLoaderOptions options{.batch_size = 4, .shuffle = true, .drop_last = true};
  DataLoader<Numbers> whole(Numbers(18), options);
  whole.set_epoch(1);
  const Batches expected = read(whole);
  DataLoader<Numbers> skipped(Numbers(18), options);
  skipped.set_epoch(1);
  skipped.skip_first_batches(1);
  EXPECT_EQ(skipped.epoch(), 1);
  EXPECT_EQ(read(skipped), Batches(expected.begin() + 1, expected.end()));
}

TEST(EndOfDataloader, IsKnownInEveryLoop) {
  const auto stack = std::make_shared<LoaderStack>();
  DataLoader<Numbers> loader(Numbers(16), {.batch_size = 4}, 0, 1, 1, stack);
  for (int loop = 0; loop < 2; ++loop) {
    int number = 0;
    for ([[maybe_unused]] const auto& batch : loader) EXPECT_EQ(stack->at_last_batch(), number++ == 3);
  }
}

TEST(Reproducibility, SameSeedSameOrder) {
  for (const int world_size : {1, 2, 3}) {
    const auto order = [&](std::uint64_t seed) {
      return table(6, {.batch_size = 1, .shuffle = true, .seed = seed}, world_size);
    };
    EXPECT_EQ(order(21), order(21));
    EXPECT_NE(order(21), order(42));
  }
}

}  // namespace
}  // namespace tutti::accelerate_cases_test
