// Loaders over streams that continue at saved positions. Ranks are loaders in one process that do not communicate.
#include <gtest/gtest.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/shared.h>
#include <torch/data/transforms/base.h>

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

/// The numbers 0 .. 22, with the numbers read by get_batch() in `read`.
class Seekable : public torch::data::datasets::StatefulDataset<Seekable, Block> {
 public:
  explicit Seekable(std::shared_ptr<std::vector<int>> read) : read_(std::move(read)) {}
  void reset() override { next_ = 0; }
  void skip(std::size_t samples) { next_ += static_cast<int>(samples); }
  std::optional<Block> get_batch(std::size_t batch_size) override {
    Block block;
    for (; next_ < 23 && block.numbers.size() < batch_size; ++next_) block.numbers.push_back(next_);
    read_->insert(read_->end(), block.numbers.begin(), block.numbers.end());
    return block.numbers.empty() ? std::nullopt : std::optional(std::move(block));
  }
  std::optional<std::size_t> size() const override { return std::nullopt; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  int next_ = 0;
  std::shared_ptr<std::vector<int>> read_;
};

/// The numbers of a block.
struct NumbersOf : torch::data::transforms::BatchTransform<Block, std::vector<int>> {
  std::vector<int> apply_batch(Block block) override { return block.numbers; }
};

// Two ranks read 23 numbers. After 16 of them the resumed loaders read the first batch of each rank, for the end.
TEST(StreamResume, CallsSkipOfAStreamAfterTheFirstBatches) {
  for (const std::int64_t batch_size : {1, 2}) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto numbers_read = std::make_shared<std::vector<int>>();
      const LoaderGroup group{.rank = rank, .world_size = 2, .stack = std::make_shared<LoaderStack>()};
      const auto resumed_reads = [&](auto loader, const Batches& expected) {
        StreamCursor interrupted(StreamSharding::slices, 2, 2);
        interrupted.skip(4);
        loader.load_state_dict(interrupted.state_dict());
        numbers_read->clear();
        EXPECT_EQ(read(loader), expected);
        EXPECT_EQ(*numbers_read, (std::vector<int>{0, 1, 2, 3, 16, 17, 18, 19, 20, 21, 22}));
      };
      auto whole_loader = loader_of(Counting(23), {.batch_size = batch_size}, rank, 2);
      const Batches whole = read(whole_loader);
      const Batches rest(whole.begin() + 8 / batch_size, whole.end());
      resumed_reads(StreamLoader(Seekable(numbers_read).map(NumbersOf()), {.batch_size = batch_size}, group), rest);
      auto shared = torch::data::datasets::make_shared_dataset<Seekable>(numbers_read);
      resumed_reads(StreamLoader(shared.map(NumbersOf()), {.batch_size = batch_size}, group), rest);
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
