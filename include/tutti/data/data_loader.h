#pragma once
// A loader over a map-style dataset that reads this rank's shard and knows one batch ahead where it ends.
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/data/loader_position.h"
#include "tutti/data/sampler.h"

namespace tutti {

struct DataLoaderOptions {
  std::int64_t batch_size = 1;  ///< samples in this rank's micro-batch
  bool shuffle = false;
  std::uint64_t seed = 0;  ///< of the shuffle; the same on all ranks
  Sharding sharding = Sharding::interleaved;
  /// Drop a last batch that is not full, and samples that do not fill all ranks. An error where nothing would be left.
  bool drop_last = false;
};

/// What can be dealt to ranks: get_batch() of a list of indices, and size(), as torch::data::datasets have them (maps
/// and shared datasets too). A ready torch::data loader cannot be dealt, as its sampler is private.
template <typename Dataset>
concept IndexedDataset = requires(Dataset& dataset, const std::vector<std::size_t>& indices) {
  dataset.get_batch(indices);
  dataset.size();
};

/// Iterates over one epoch per begin(), and the next begin() over the next epoch. Iterators are single-pass and must
/// not outlive the loader; leaving the loop early ends the epoch. Loops may nest. Not thread safe.
template <typename Dataset>
class DataLoader {
  static_assert(
      IndexedDataset<Dataset>,
      "tutti::DataLoader makes its own shard of a dataset with size() and get_batch(indices); pass the dataset, "
      "not a ready loader");

 public:
  using Batch = decltype(std::declval<Dataset&>().get_batch(std::declval<const std::vector<std::size_t>&>()));

  /// Loops are entered in `stack` while they run. `accumulation_steps` matters for Sharding::blocks_by_window only.
  /// Throws UsageError for an empty dataset, options out of range, and where drop_last leaves no batch.
  DataLoader(Dataset dataset, const DataLoaderOptions& options, int rank = 0, int world_size = 1,
             std::int64_t accumulation_steps = 1, std::shared_ptr<LoaderStack> stack = std::make_shared<LoaderStack>());

  class Iterator;
  Iterator begin();
  std::default_sentinel_t end() const { return std::default_sentinel; }

  /// Batches of one epoch on this rank (the same on all ranks).
  std::int64_t size() const { return size_; }
  /// The epoch that the next loop reads.
  std::int64_t epoch() const { return epoch_; }
  /// Must be called on all ranks alike.
  void set_epoch(std::int64_t epoch) { epoch_ = epoch; }
  Dataset& dataset() { return dataset_; }

 private:
  struct Loop;

  static std::int64_t size_of(const Dataset& dataset);

  Dataset dataset_;
  ShardOptions shard_;
  std::shared_ptr<LoaderStack> stack_;
  std::int64_t size_;
  std::int64_t epoch_ = 0;
};

/// One loop over an epoch, while it runs.
template <typename Dataset>
struct DataLoader<Dataset>::Loop {
  Loop(DataLoader& of, std::int64_t epoch)
      : loader(of), indices(shard_indices(of.shard_, epoch)), batches_left(of.size_), running(of.stack_) {
    read_batch();
  }

  void read_batch() {
    const auto first = indices.begin() + next;
    const auto count = std::min(loader.shard_.batch_size, static_cast<std::int64_t>(indices.end() - first));
    batch.emplace(loader.dataset_.get_batch(std::vector<std::size_t>(first, first + count)));
    next += count;
    --batches_left;
    running.set_last_batch(batches_left == 0);
  }

  DataLoader& loader;
  std::vector<std::int64_t> indices;
  std::int64_t next = 0;  ///< position in `indices`
  std::int64_t batches_left;
  std::optional<Batch> batch;
  RunningLoop running;
};

template <typename Dataset>
class DataLoader<Dataset>::Iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  explicit Iterator(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

  Batch& operator*() const { return *loop_->batch; }
  Batch* operator->() const { return &*loop_->batch; }
  Iterator& operator++() {
    if (loop_->batches_left > 0) {
      loop_->read_batch();
    } else {
      loop_.reset();  // the loop ends here, not only when the iterator dies
    }
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const Iterator& iterator, std::default_sentinel_t) { return iterator.loop_ == nullptr; }

 private:
  std::unique_ptr<Loop> loop_;
};

template <typename Dataset>
DataLoader<Dataset>::DataLoader(Dataset dataset, const DataLoaderOptions& options, int rank, int world_size,
                                std::int64_t accumulation_steps, std::shared_ptr<LoaderStack> stack)
    : dataset_(std::move(dataset)),
      shard_{.dataset_size = size_of(dataset_),
             .rank = rank,
             .world_size = world_size,
             .shuffle = options.shuffle,
             .seed = options.seed,
             .sharding = options.sharding,
             .drop_last = options.drop_last,
             .batch_size = options.batch_size,
             .accumulation_steps = accumulation_steps},
      stack_(std::move(stack)) {
  const auto samples = shard_size(shard_);
  size_ = (samples + (options.drop_last ? 0 : options.batch_size - 1)) / options.batch_size;
  if (size_ == 0) {
    throw UsageError("drop_last leaves no batch: " + std::to_string(shard_.dataset_size) + " samples on " +
                     std::to_string(world_size) + " ranks do not fill a batch of " +
                     std::to_string(options.batch_size) + " on each");
  }
}

template <typename Dataset>
typename DataLoader<Dataset>::Iterator DataLoader<Dataset>::begin() {
  auto loop = std::make_unique<Loop>(*this, epoch_);
  ++epoch_;
  return Iterator(std::move(loop));
}

template <typename Dataset>
std::int64_t DataLoader<Dataset>::size_of(const Dataset& dataset) {
  const auto size = dataset.size();
  if constexpr (std::integral<std::remove_cvref_t<decltype(size)>>) {
    return static_cast<std::int64_t>(size);
  } else {
    // torch::data::datasets give an optional, empty for streams.
    if (!size) throw UsageError("the dataset does not know its size, so it cannot be dealt to ranks");
    return static_cast<std::int64_t>(*size);
  }
}

}  // namespace tutti
