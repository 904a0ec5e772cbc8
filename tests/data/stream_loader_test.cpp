// Loaders over streams on one rank, and on several ranks that are loaders in one process and do not communicate.
#include "tutti/data/stream_loader.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <vector>

#include "data/numbers.h"
#include "data/streams.h"
#include "tutti/core/error.h"

namespace tutti::test::stream_loader_test {
namespace {

static_assert(StreamDataset<Counting> && StreamDataset<CountingBlocks> && !StreamDataset<Numbers>);
static_assert(!IndexedDataset<Counting>);
static_assert(std::input_iterator<StreamLoader<Counting>::Iterator>);

TEST(StreamSlices, RanksKeepTheirPartOfEachGlobalBatch) {
  EXPECT_EQ(table(8, {.batch_size = 2}, 2), (Table{{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}}));
  EXPECT_EQ(table(8, {.batch_size = 4, .split_batches = true}, 2), (Table{{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}}));
  EXPECT_EQ(table(4, {.batch_size = 2}, 1), (Table{{{0, 1}, {2, 3}}}));
}

TEST(StreamSlices, TheLastGlobalBatchIsFilledWithTheFirstSamples) {
  EXPECT_EQ(table(5, {.batch_size = 2}, 2), (Table{{{0, 1}, {4, 0}}, {{2, 3}, {1, 2}}}));
  EXPECT_EQ(table(7, {.batch_size = 2}, 2), (Table{{{0, 1}, {4, 5}}, {{2, 3}, {6, 0}}}));
  EXPECT_EQ(table(2, {.batch_size = 4}, 2), (Table{{{0, 1, 0, 1}}, {{0, 1, 0, 1}}}));
}

/// Accepts one batch size only, as ChunkDataset does.
struct OneBatchSize {
  Counting numbers;
  std::size_t batch_size;
  void reset() { numbers.reset(); }
  std::optional<std::vector<int>> get_batch(std::size_t size) {
    if (size != batch_size) throw std::runtime_error("another batch size");
    return numbers.get_batch(size);
  }
};
TEST(StreamSlices, AStreamMayAcceptOneBatchSizeOnly) {
  for (const int piece : {1, 2, 3}) {
    StreamLoader<OneBatchSize> loader({.numbers = Counting(7, 0, piece), .batch_size = 3}, {.batch_size = 3});
    Batches batches;
    for (const auto& batch : loader) batches.push_back(batch);
    EXPECT_EQ(batches, (Batches{{0, 1, 2}, {3, 4, 5}, {6, 0, 1}}));
  }
}

TEST(StreamSlices, DropLastDropsTheLastGlobalBatch) {
  EXPECT_EQ(table(7, {.batch_size = 2, .drop_last = true}, 2), (Table{{{0, 1}}, {{2, 3}}}));
  EXPECT_EQ(table(2, {.batch_size = 4, .drop_last = true}, 2), (Table{{}, {}}));
}

TEST(StreamSlices, UnevenReadsEverySampleOnce) {
  EXPECT_EQ(table(7, {.batch_size = 2, .even_batches = false}, 2), (Table{{{0, 1}, {4, 5}}, {{2, 3}, {6}}}));
  EXPECT_EQ(table(5, {.batch_size = 2, .even_batches = false}, 2), (Table{{{0, 1}, {4}}, {{2, 3}}}));
  EXPECT_EQ(table(1, {.batch_size = 2, .even_batches = false}, 3), (Table{{{0}}, {}, {}}));
}

// check_iterable_dataset_shards of Accelerate's test_data_loader.py: every rank has the same number of batches, all of
// them full, and together they are the stream followed by its first samples.
TEST(StreamSlices, EqualsIterableDatasetShard) {
  for (const int size : {1, 2, 3, 8, 61, 64, 100}) {
    for (const int world_size : {1, 2, 3}) {
      for (const bool drop_last : {false, true}) {
        for (const bool split : {false, true}) {
          for (const int piece : {1, 3, 1000}) {  // a stream may return less than requested
            const std::int64_t batch_size = split ? 4 * world_size : 4;
            const auto ranks = table(size, {.batch_size = batch_size, .drop_last = drop_last, .split_batches = split},
                                     world_size, piece);
            std::vector<int> observed;
            for (std::size_t i = 0; i < ranks[0].size(); ++i) {
              for (const Batches& rank : ranks) {
                ASSERT_EQ(rank.size(), ranks[0].size());
                EXPECT_EQ(rank[i].size(), 4U);
                observed.insert(observed.end(), rank[i].begin(), rank[i].end());
              }
            }
            std::vector<int> reference = count_to(size);
            while (reference.size() < observed.size()) {
              reference.insert(reference.end(), reference.begin(), reference.begin() + size);
            }
            const std::size_t round = 4 * static_cast<std::size_t>(world_size);
            const auto full_rounds = static_cast<std::size_t>(size) / round * round;
            const bool whole = full_rounds == static_cast<std::size_t>(size);
            EXPECT_EQ(observed.size(), full_rounds + (drop_last || whole ? 0 : round));
            EXPECT_EQ(observed, std::vector<int>(reference.begin(), reference.begin() + std::ssize(observed)));
          }
        }
      }
    }
  }
}

TEST(StreamSlices, BatchesThatCannotBeSplitStayWhole) {
  const auto blocks = [](int size, StreamLoaderOptions options, int rank) {
    options.batch_size = 2;
    StreamLoader<CountingBlocks> loader(CountingBlocks(size), options, {.rank = rank, .world_size = 3});
    Batches all;
    for (const Block& block : loader) all.push_back(block.numbers);
    return all;
  };
  EXPECT_EQ(blocks(9, {}, 0), (Batches{{0, 1}, {6, 7}}));
  EXPECT_EQ(blocks(9, {}, 1), (Batches{{2, 3}, {8}}));
  EXPECT_EQ(blocks(9, {}, 2), (Batches{{4, 5}, {0, 1}}));  // the first batch is repeated
  EXPECT_EQ(blocks(9, {.even_batches = false}, 2), (Batches{{4, 5}}));
  EXPECT_EQ(blocks(9, {.drop_last = true}, 0), (Batches{{0, 1}}));
  EXPECT_EQ(blocks(11, {.drop_last = true}, 0), (Batches{{0, 1}}));  // the last batch is not full
}

/// Batches of a pair and of a map of tensors.
template <typename Batch>
struct OfTensors {
  void reset() { left = 5; }
  std::optional<Batch> get_batch(std::size_t size) {
    const std::int64_t count = std::min<std::int64_t>(left, static_cast<std::int64_t>(size));
    left -= count;
    if (count == 0) return std::nullopt;
    if constexpr (requires(Batch batch) { batch.first; }) {
      return Batch{at::zeros({count, 2}), at::zeros({count})};
    } else {
      return Batch{{"factor", at::zeros({})}, {"x", at::zeros({count, 2})}};
    }
  }
  std::int64_t left = 0;
};

TEST(StreamLoader, DropLastKnowsTheSizesOfPairsAndMaps) {
  const auto batches = [](auto stream) {
    StreamLoader loader(std::move(stream), {.batch_size = 2, .drop_last = true});
    return std::ranges::distance(loader);
  };
  EXPECT_EQ(batches(OfTensors<std::pair<at::Tensor, at::Tensor>>()), 2);
  EXPECT_EQ(batches(OfTensors<std::map<std::string, at::Tensor>>()), 2);
}

TEST(StreamLoader, KnowsItsLastBatchAndItsRepeats) {
  const auto stack = std::make_shared<LoaderStack>();
  auto loader = loader_of(Counting(7), {.batch_size = 2}, 1, 2, stack);
  std::vector<bool> last;
  std::vector<std::int64_t> repeated;
  for ([[maybe_unused]] const auto& batch : loader) {
    last.push_back(stack->at_last_batch());
    repeated.push_back(stack->innermost().repeated);
  }
  EXPECT_EQ(last, (std::vector<bool>{false, true}));
  EXPECT_EQ(repeated, (std::vector<std::int64_t>{0, 1}));
  EXPECT_TRUE(stack->empty());
}

TEST(StreamLoader, EachLoopReadsAnEpoch) {
  struct ByEpoch : Counting {
    ByEpoch() : Counting(3) {}
    void set_epoch(std::int64_t epoch) { epoch_ = static_cast<int>(epoch); }
    std::optional<std::vector<int>> get_batch(std::size_t size) {
      auto batch = Counting::get_batch(size);
      if (batch) batch->push_back(epoch_);
      return batch;
    }
    int epoch_ = -1;
  };
  StreamLoader<ByEpoch> loader(ByEpoch(), {.batch_size = 3, .even_batches = false});
  EXPECT_EQ(read(loader), (Batches{{0, 1, 2, 0}}));
  EXPECT_EQ(read(loader), (Batches{{0, 1, 2, 1}}));
  loader.set_epoch(7);
  EXPECT_EQ(loader.epoch(), 7);
  EXPECT_EQ(read(loader), (Batches{{0, 1, 2, 7}}));
  EXPECT_EQ(loader.epoch(), 8);
}

TEST(StreamLoader, AStreamWithoutResetIsReadOnce) {
  struct Once {
    std::optional<std::vector<int>> get_batch(std::size_t) {
      if (next == 3) return std::nullopt;
      return std::vector<int>{next++};
    }
    int next = 0;
  };
  StreamLoader<Once> loader(Once(), {});
  EXPECT_EQ(read(loader), (Batches{{0}, {1}, {2}}));
  EXPECT_TRUE(read(loader).empty());
  EXPECT_EQ(loader.epoch(), 2);
}

TEST(StreamLoader, AnEmptyStreamIsAnEmptyLoop) {
  for (const int workers : {0, 1}) {
    for (int rank = 0; rank < 3; ++rank) {
      const auto stack = std::make_shared<LoaderStack>();
      auto loader = loader_of(Counting(0), {.num_workers = workers}, rank, 3, stack);
      EXPECT_TRUE(read(loader).empty());
      EXPECT_EQ(loader.epoch(), 1);
      EXPECT_TRUE(stack->empty());
    }
  }
}

TEST(StreamLoader, LeavingALoopEarlyEndsItsEpoch) {
  for (const int workers : {0, 1}) {
    auto loader = loader_of(Counting(100), {.batch_size = 3, .num_workers = workers}, 0, 1);
    for (int loop = 0; loop < 3; ++loop) {
      for (const auto& batch : loader) {
        EXPECT_EQ(loader.cursor()->batch_index(), batch[0] / 3 + 1);
        if (batch[0] == 6) break;
      }
      EXPECT_EQ(loader.epoch(), loop + 1);
    }
    EXPECT_EQ(read(loader).size(), 34U);
  }
}

TEST(StreamLoader, CannotBeReadTwiceAtOnce) {
  auto loader = loader_of(Counting(10), {}, 0, 1);
  for ([[maybe_unused]] const auto& batch : loader) {
    EXPECT_THROW(loader.begin(), UsageError);
    break;
  }
  EXPECT_EQ(read(loader).size(), 10U);
}

TEST(StreamLoader, NestsInOtherLoops) {
  const auto stack = std::make_shared<LoaderStack>();
  auto stream = loader_of(Counting(3), {}, 0, 1, stack);
  DataLoader<Numbers> numbers(Numbers(2), {}, 0, 1, 1, stack);
  std::vector<bool> during;
  std::vector<bool> after;
  for ([[maybe_unused]] const auto& outer : numbers) {
    for (const auto& inner : stream) {
      during.push_back(stack->at_last_batch());
      if (inner[0] == 1) break;
    }
    after.push_back(stack->at_last_batch());
  }
  EXPECT_EQ(during, (std::vector<bool>(4, false)));
  EXPECT_EQ(after, (std::vector<bool>{false, true}));
}

TEST(StreamLoader, AFailureIsThrownInPlaceOfItsBatch) {
  for (const int workers : {0, 1}) {
    Counting stream(10);
    stream.fail_at(4);
    auto loader = loader_of(stream, {.num_workers = workers}, 0, 1);
    int received = 0;
    const auto loop = [&] {
      for (const auto& batch : loader) {
        EXPECT_EQ(batch[0], received++);
        EXPECT_FALSE(loader.stack()->at_last_batch());
      }
    };
    EXPECT_THROW(loop(), std::runtime_error);
    EXPECT_EQ(received, 4);
    EXPECT_TRUE(loader.stack()->empty());
    loader.dataset().fail_at(-1);
    received = 0;
    for ([[maybe_unused]] const auto& batch : loader) ++received;
    EXPECT_EQ(received, 10);
  }
}

TEST(StreamLoader, AWorkerReadsTheSameBatches) {
  for (const int world_size : {1, 2, 3}) {
    for (const bool even : {true, false}) {
      const StreamLoaderOptions options{.batch_size = 3, .even_batches = even};
      StreamLoaderOptions ahead = options;
      ahead.num_workers = 1;
      EXPECT_EQ(table(50, ahead, world_size), table(50, options, world_size));
    }
  }
}

TEST(StreamLoader, MovesBatchesToTheirDevice) {
  struct Tensors {
    std::optional<at::Tensor> get_batch(std::size_t size) {
      if (++calls > 3) return std::nullopt;
      return at::empty({static_cast<std::int64_t>(size)});
    }
    int calls = 0;
  };
  StreamLoader<Tensors> loader(Tensors(), {.batch_size = 2, .device = at::kMeta});
  int batches = 0;
  for (const auto& batch : loader) {
    EXPECT_TRUE(batch.is_meta());
    ++batches;
  }
  EXPECT_EQ(batches, 3);
}

TEST(StreamLoader, InvalidOptionsAreRefused) {
  const auto make = [](const StreamLoaderOptions& options) { return loader_of(Counting(4), options, 0, 2); };
  EXPECT_THROW(make({.batch_size = 0}), UsageError);
  EXPECT_THROW(make({.batch_size = 3, .split_batches = true}), UsageError);
  EXPECT_THROW(make({.num_workers = 2}), UsageError);
  EXPECT_THROW(make({.num_workers = -1}), UsageError);
  EXPECT_THROW(make({.num_workers = 1, .prefetch_factor = 0}), UsageError);
  EXPECT_THROW(make({.sharding = StreamSharding::per_rank}), UsageError);  // no agreement is set
  EXPECT_THROW(loader_of(Counting(4), {}, 2, 2), UsageError);
}

}  // namespace
}  // namespace tutti::test::stream_loader_test
