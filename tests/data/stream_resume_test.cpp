// Loaders over streams that continue at saved positions. Ranks are loaders in one process that do not communicate.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "data/numbers.h"
#include "data/streams.h"
#include "tutti/core/error.h"

namespace tutti::test::stream_resume_test {
namespace {

TEST(StreamResume, ResumesAfterEveryBatch) {
  for (const int workers : {0, 1}) {
    for (const bool even : {true, false}) {
      const StreamLoaderOptions options{.batch_size = 2, .even_batches = even, .num_workers = workers};
      for (int rank = 0; rank < 3; ++rank) {
        auto uninterrupted = loader_of(Counting(23), options, rank, 3);
        const Batches whole = read(uninterrupted);
        auto interrupted = loader_of(Counting(23), options, rank, 3);
        std::ptrdiff_t received = 0;
        for ([[maybe_unused]] const auto& batch : interrupted) {
          auto resumed = loader_of(Counting(23), options, rank, 3);
          resumed.load_state_dict(interrupted.state_dict());
          ++received;
          EXPECT_EQ(resumed.cursor()->batch_index(), received);
          EXPECT_EQ(read(resumed), Batches(whole.begin() + received, whole.end()));
          EXPECT_EQ(resumed.epoch(), 1);
          EXPECT_EQ(read(resumed), whole);
        }
      }
    }
  }
}

/// Blocks of 2 numbers, and every third one of 1, as at the end of a file.
class ShortBlocks {
 public:
  void reset() { read_ = 0; }
  std::optional<Block> get_batch(std::size_t) {
    if (read_ == 12) return std::nullopt;
    const int number = 2 * read_;
    return Block{read_++ % 3 == 1 ? std::vector<int>{number} : std::vector<int>{number, number + 1}};
  }

 private:
  int read_ = 0;
};

TEST(StreamResume, RoundsThatDropLastLeavesOutAreNotCounted) {
  for (const int world_size : {1, 2}) {
    const auto loader_of_blocks = [&] {
      return StreamLoader<ShortBlocks>(ShortBlocks(), {.batch_size = 2, .drop_last = true},
                                       {.rank = 0, .world_size = world_size, .stack = std::make_shared<LoaderStack>()});
    };
    const auto rest = [](StreamLoader<ShortBlocks>& loader) {
      Batches batches;
      for (const Block& block : loader) batches.push_back(block.numbers);
      return batches;
    };
    auto uninterrupted = loader_of_blocks();
    const Batches whole = rest(uninterrupted);
    EXPECT_EQ(whole.size(), world_size == 1 ? 8U : 2U);
    auto interrupted = loader_of_blocks();
    std::ptrdiff_t received = 0;
    for ([[maybe_unused]] const Block& block : interrupted) {
      auto resumed = loader_of_blocks();
      resumed.load_state_dict(interrupted.state_dict());
      ++received;
      EXPECT_EQ(rest(resumed), Batches(whole.begin() + received, whole.end()));
    }
  }
}

TEST(StreamResume, OnOtherNumbersOfRanksEverySampleIsReadOnce) {
  std::vector<int> all;
  StateDict state;
  for (int rank = 0; rank < 2; ++rank) {
    auto interrupted = loader_of(Counting(37), {.batch_size = 3}, rank, 2);
    for (const auto& batch : interrupted) {
      all.insert(all.end(), batch.begin(), batch.end());
      state = interrupted.state_dict();
      if (interrupted.cursor()->batch_index() == 2) break;
    }
  }
  for (int rank = 0; rank < 3; ++rank) {
    auto resumed = loader_of(Counting(37), {.batch_size = 2, .even_batches = false}, rank, 3);
    resumed.load_state_dict(state);
    for (const auto& batch : resumed) all.insert(all.end(), batch.begin(), batch.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, count_to(37));
}

TEST(StreamResume, SkipFirstBatchesAppliesToTheNextLoopOnly) {
  auto loader = loader_of(Counting(8), {.batch_size = 2}, 0, 1);
  loader.skip_first_batches(3);
  EXPECT_EQ(read(loader), (Batches{{6, 7}}));
  EXPECT_EQ(read(loader).size(), 4U);
  loader.skip_first_batches(100);
  EXPECT_TRUE(read(loader).empty());
  EXPECT_THROW(loader.skip_first_batches(-1), UsageError);
}

TEST(StreamResume, SkipFirstBatchesIsRefusedAfterARestoredPosition) {
  auto interrupted = loader_of(Counting(8), {.batch_size = 2}, 0, 1);
  StateDict state;
  for ([[maybe_unused]] const auto& batch : interrupted) {
    state = interrupted.state_dict();
    break;
  }
  auto loader = loader_of(Counting(8), {.batch_size = 2}, 0, 1);
  loader.load_state_dict(state);
  EXPECT_THROW(loader.skip_first_batches(1), UsageError);
  EXPECT_EQ(read(loader).size(), 3U);
}

/// As LibTorch's ChunkDataset.
class OfOneBatchSize : public Counting {
 public:
  OfOneBatchSize(int size, std::size_t batch_size) : Counting(size), batch_size_(batch_size) {}
  std::optional<std::vector<int>> get_batch(std::size_t batch_size) {
    if (batch_size != batch_size_) throw std::runtime_error("another batch size");
    return Counting::get_batch(batch_size);
  }

 private:
  std::size_t batch_size_;
};

TEST(StreamResume, AStreamOfOneBatchSizeResumesWithAnotherOne) {
  for (const std::size_t before : {2, 3}) {
    const std::size_t after = 5 - before;
    auto interrupted = loader_of(OfOneBatchSize(13, before), {.batch_size = static_cast<std::int64_t>(before)}, 0, 1);
    StateDict state;
    std::size_t received = 0;
    for (const auto& batch : interrupted) {
      received += batch.size();
      state = interrupted.state_dict();
      if (received >= 6) break;
    }
    auto resumed = loader_of(OfOneBatchSize(13, after), {.batch_size = static_cast<std::int64_t>(after)}, 0, 1);
    resumed.load_state_dict(state);
    std::vector<int> rest;
    for (const auto& batch : resumed) rest.insert(rest.end(), batch.begin(), batch.end());
    rest.resize(7);  // the last batch is filled up with the first samples
    EXPECT_EQ(rest, (std::vector<int>{6, 7, 8, 9, 10, 11, 12}));
  }
}

TEST(StreamResume, StatesOfOtherLoadersAreRefused) {
  auto slices = loader_of(Counting(8), {}, 0, 2);
  DataLoader<Numbers> numbers(Numbers(8), {});
  EXPECT_THROW(slices.load_state_dict(numbers.state_dict()), CheckpointError);
  EXPECT_THROW(numbers.load_state_dict(slices.state_dict()), CheckpointError);
  EXPECT_NO_THROW(slices.load_state_dict(StreamCursor(StreamSharding::per_rank, 2, 1).state_dict()))
      << "between epochs";
  StreamCursor own_on_two(StreamSharding::per_rank, 2, 1);
  own_on_two.skip(1);
  EXPECT_THROW(slices.load_state_dict(own_on_two.state_dict()), CheckpointError);
  StreamCursor own_on_three(StreamSharding::per_rank, 3, 1);
  EXPECT_THROW(own_on_three.load_state_dict(own_on_two.state_dict()), CheckpointError);
  StateDict damaged = own_on_two.state_dict();
  damaged.set("segments.batches", std::vector<std::int64_t>{-1});
  EXPECT_THROW(StreamCursor(StreamSharding::per_rank, 2, 1).load_state_dict(damaged), CheckpointError);
}

}  // namespace
}  // namespace tutti::test::stream_resume_test
