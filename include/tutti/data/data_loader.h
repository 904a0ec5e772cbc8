#pragma once
// A loader over a map-style dataset that reads this rank's shard, knows one batch ahead where it ends, and can go on
// later where it stood.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/data/epoch_cursor.h"
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

/// Iterates over one epoch per begin(), or over what is left of it after load_state_dict(), and the next begin() over
/// the next epoch. Iterators are single-pass and must not outlive the loader; leaving the loop early ends the epoch.
/// Loops may nest. Copies share their place in the data. Not thread safe.
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

  /// Batches of a whole epoch on this rank (the same on all ranks).
  std::int64_t size() const { return cursor_->batches_per_epoch(); }
  /// The epoch that the next loop reads.
  std::int64_t epoch() const { return cursor_->next_epoch(); }
  /// Must be called on all ranks alike. An epoch that load_state_dict() has set already is gone on with.
  void set_epoch(std::int64_t epoch) { cursor_->set_epoch(epoch); }
  /// The next loop leaves out its first `batches` batches, the loops after it none; on all ranks alike, after
  /// set_epoch(). Throws UsageError when there are fewer left.
  void skip_first_batches(std::int64_t batches) { cursor_->skip(batches); }

  /// Where reading stands; batches that a loop has received count as read, the one in its body included. For whoever
  /// saves it.
  const std::shared_ptr<EpochCursor>& cursor() const { return cursor_; }
  StateDict state_dict() const { return cursor_->state_dict(); }
  /// The next loop goes on after the batches that were read when the state was saved. With as many ranks and the same
  /// batch size it reads exactly what would have followed; with others, the samples that no rank has read are dealt
  /// anew. A loop with nothing left is empty, and the one after it reads the next epoch. Throws CheckpointError for the
  /// state of another loader.
  void load_state_dict(const StateDict& state) { cursor_->load_state_dict(state); }

  Dataset& dataset() { return dataset_; }

 private:
  struct Loop;

  static std::int64_t size_of(const Dataset& dataset);

  Dataset dataset_;
  std::shared_ptr<EpochCursor> cursor_;
  std::shared_ptr<LoaderStack> stack_;
};

/// One loop over an epoch, while it runs.
template <typename Dataset>
struct DataLoader<Dataset>::Loop {
  explicit Loop(DataLoader& loader) : dataset(loader.dataset_), reading(loader.cursor_), running(loader.stack_) {}

  void read_batch() {
    batch.emplace(dataset.get_batch(reading.next_batch()));
    reading.received();
    running.set_last_batch(reading.batches_left() == 0);
  }

  Dataset& dataset;
  EpochReading reading;
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
    if (loop_->reading.batches_left() > 0) {
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
      cursor_(std::make_shared<EpochCursor>(ShardOptions{.dataset_size = size_of(dataset_),
                                                         .rank = rank,
                                                         .world_size = world_size,
                                                         .shuffle = options.shuffle,
                                                         .seed = options.seed,
                                                         .sharding = options.sharding,
                                                         .drop_last = options.drop_last,
                                                         .batch_size = options.batch_size,
                                                         .accumulation_steps = accumulation_steps})),
      stack_(std::move(stack)) {}

template <typename Dataset>
typename DataLoader<Dataset>::Iterator DataLoader<Dataset>::begin() {
  auto loop = std::make_unique<Loop>(*this);
  if (loop->reading.batches_left() == 0) {
    loop->reading.end_empty_epoch();
    return Iterator(nullptr);
  }
  loop->read_batch();
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
