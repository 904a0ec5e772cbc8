#pragma once
// Streams for tests.
#include <torch/data/datasets/stateful.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "data/numbers.h"
#include "tutti/data/stream_loader.h"

namespace tutti::test {

/// The numbers 0 .. size - 1, in pieces of at most `piece`. Reading fails from `fails_at` on.
class Counting {
 public:
  explicit Counting(int size, int first = 0, int piece = 1000) : first_(first), size_(size), piece_(piece) {}
  void fail_at(int number) { fails_at_ = number; }

  void reset() { next_ = 0; }
  std::optional<std::vector<int>> get_batch(std::size_t batch_size) {
    if (next_ >= size_) return std::nullopt;
    std::vector<int> batch;
    while (next_ < size_ && batch.size() < batch_size && static_cast<int>(batch.size()) < piece_) {
      if (next_ == fails_at_) throw std::runtime_error("cannot read");
      batch.push_back(first_ + next_++);
    }
    return batch;
  }

 private:
  int first_;
  int size_;
  int piece_;
  int fails_at_ = -1;
  int next_ = 0;
};

/// A batch that cannot be split, as those of LibTorch's datasets.
struct Block {
  std::vector<int> numbers;
};
class CountingBlocks : public torch::data::datasets::StatefulDataset<CountingBlocks, Block> {
 public:
  explicit CountingBlocks(int size) : numbers_(size) {}
  void reset() override { numbers_.reset(); }
  std::optional<Block> get_batch(std::size_t batch_size) override {
    auto numbers = numbers_.get_batch(batch_size);
    if (!numbers) return std::nullopt;
    return Block{std::move(*numbers)};
  }
  std::optional<std::size_t> size() const override { return std::nullopt; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  Counting numbers_;
};
/// The number of samples in a block. The loader finds it by argument-dependent lookup.
inline std::int64_t num_samples(const Block& block) {
  return static_cast<std::int64_t>(block.numbers.size());
}

using Table = std::vector<Batches>;  // by rank

/// A loader of one rank that does not communicate.
inline StreamLoader<Counting> loader_of(const Counting& stream, const StreamLoaderOptions& options, int rank,
                                        int world_size,
                                        std::shared_ptr<LoaderStack> stack = std::make_shared<LoaderStack>()) {
  return {stream, options, {.rank = rank, .world_size = world_size, .stack = std::move(stack)}};
}

/// The batches that each rank reads in a loop.
inline Table table(int size, const StreamLoaderOptions& options, int world_size, int piece = 1000) {
  Table ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    auto loader = loader_of(Counting(size, 0, piece), options, rank, world_size);
    ranks.push_back(read(loader));
  }
  return ranks;
}

}  // namespace tutti::test
