#pragma once
// A loader over a map-style dataset that reads this rank's shard, knows one batch ahead where it ends, and can go on
// later where it stood. What is dealt to whom is in docs/data.md.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/data/data_loader_options.h"
#include "tutti/data/to_device.h"
#include "tutti/detail/data/epoch_cursor.h"
#include "tutti/detail/data/loader_group.h"
#include "tutti/detail/data/loader_iterator.h"
#include "tutti/detail/data/prefetcher.h"

namespace tutti {

/// What can be dealt to ranks: get_batch() of a list of indices, and size(), as torch::data::datasets have them (maps
/// and shared datasets too). A ready torch::data loader cannot be dealt, as its sampler is private.
template <typename Dataset>
concept IndexedDataset = requires(Dataset& dataset, const std::vector<std::size_t>& indices) {
  dataset.get_batch(indices);
  dataset.size();
};

/// Iterates over one epoch per begin(), or over what is left of it after load_state_dict(), and the next begin() over
/// the next epoch. Iterators are single-pass and must not outlive the loader; leaving the loop early ends the epoch.
/// Loops may nest. What get_batch() throws comes out of the loop where its batch would have come, from workers too.
/// Copies share their place in the data. Not thread safe.
template <typename Dataset>
class DataLoader {
  static_assert(
      IndexedDataset<Dataset>,
      "tutti::DataLoader makes its own shard of a dataset with size() and get_batch(indices); pass the dataset, "
      "not a ready loader");

 public:
  /// What the dataset's get_batch() gives.
  using Batch = decltype(std::declval<Dataset&>().get_batch(std::declval<const std::vector<std::size_t>&>()));

  /// Accelerator::data_loader() makes one. Throws UsageError for an empty dataset, options out of range or against one
  /// another, and where drop_last leaves no batch.
  DataLoader(Dataset dataset, const DataLoaderOptions& options, LoaderGroup group);
  /// The same without an Accelerator: rank `rank` of `world_size` reads its share. `accumulation_steps` counts for
  /// Sharding::blocks_by_window only.
  DataLoader(Dataset dataset, const DataLoaderOptions& options, int rank = 0, int world_size = 1,
             std::int64_t accumulation_steps = 1, std::shared_ptr<LoaderStack> stack = std::make_shared<LoaderStack>())
      : DataLoader(std::move(dataset), options,
                   LoaderGroup{.rank = rank,
                               .world_size = world_size,
                               .accumulation_steps = accumulation_steps,
                               .stack = std::move(stack)}) {}

  class Loop;
  /// What begin() gives: an input iterator.
  using Iterator = LoaderIterator<Loop>;
  /// Begins an epoch: what a range-based for loop calls. Under an Accelerator with a sampler every rank must call it.
  Iterator begin();
  /// The end of every loop.
  std::default_sentinel_t end() const { return std::default_sentinel; }

  /// Batches of the whole next epoch on this rank: the same number on all ranks, but for loaders without even_batches
  /// outside a JoinScope.
  std::int64_t size() const {
    const bool own = group_.stack->tail(options_.even_batches) == EpochTail::shorten;
    return own ? cursor_->local_batches_per_epoch() : cursor_->batches_per_epoch();
  }
  /// The epoch that the next loop reads.
  std::int64_t epoch() const { return cursor_->next_epoch(); }
  /// The next loop reads epoch `epoch`. Must be called on all ranks alike. An epoch that load_state_dict() has set
  /// already is gone on with.
  void set_epoch(std::int64_t epoch) { cursor_->set_epoch(epoch); }
  /// The next loop leaves out its first `batches` batches, the loops after it none; on all ranks alike, after
  /// set_epoch(). Throws UsageError when there are fewer left.
  void skip_first_batches(std::int64_t batches) { cursor_->skip(batches); }

  /// Where reading stands; batches that a loop has received count as read, the one in its body included, what workers
  /// have read ahead does not. For whoever saves it.
  const std::shared_ptr<EpochCursor>& cursor() const { return cursor_; }
  /// Where reading stands, for load_state_dict(). An Accelerator saves it with the rest.
  StateDict state_dict() const { return cursor_->state_dict(); }
  /// The next loop goes on after the batches that were read when the state was saved. With as many ranks and the same
  /// batch size it reads exactly what would have followed; with others, the samples that no rank has read are dealt
  /// anew. A loop with nothing left is empty, and the one after it reads the next epoch. Throws CheckpointError for the
  /// state of another loader.
  void load_state_dict(const StateDict& state) { cursor_->load_state_dict(state); }

  /// What loops read, and what workers copy.
  Dataset& dataset() { return dataset_; }
  /// What the loader was told.
  const DataLoaderOptions& options() const { return options_; }
  /// Where the running loops stand.
  const std::shared_ptr<LoaderStack>& stack() const { return group_.stack; }
  /// What is read, in words: the same on ranks whose loaders belong together.
  std::string description() const { return describe(options_, cursor_->options().dataset_size); }

 private:
  static std::int64_t size_of(const Dataset& dataset);

  Dataset dataset_;
  DataLoaderOptions options_;
  LoaderGroup group_;
  Placement placement_;
  std::shared_ptr<EpochCursor> cursor_;
};

/// One loop over an epoch, while it runs.
template <typename Dataset>
class DataLoader<Dataset>::Loop {
 public:
  /// What a loop gives.
  using Batch = DataLoader::Batch;

  /// Begins the epoch. DataLoader::begin() makes one.
  explicit Loop(DataLoader& loader)
      : loader_(loader),
        reading_(loader.cursor_, loader.group_.stack->tail(loader.options_.even_batches), loader.group_.agreement),
        running_(loader.group_.stack) {
    if (reading_.size() > 0 && loader.options_.num_workers > 0) start_workers();
  }

  /// Reads the next batch of this rank; false where there is none.
  bool advance() {
    if (reading_.batches_left() == 0) {
      if (reading_.size() == 0) reading_.end_empty_epoch();
      return false;
    }
    const EpochBatch next = reading_.batch(reading_.size() - reading_.batches_left());
    batch_.emplace(
        detail::placed(workers_ ? *workers_->next() : loader_.dataset_.get_batch(next.samples), loader_.placement_));
    reading_.received();
    running_.set({.last_batch = reading_.batches_left() == 0,
                  .uneven = reading_.uneven(),
                  .samples = static_cast<std::int64_t>(next.samples.size()),
                  .repeated = next.repeated,
                  .filler = next.filler});
    return true;
  }
  /// The batch that advance() has read.
  Batch& batch() { return *batch_; }

 private:
  void start_workers() {
    if constexpr (std::copy_constructible<Dataset>) {
      std::vector<typename Prefetcher<Batch>::Reader> readers;
      for (int worker = 0; worker < loader_.options_.num_workers; ++worker) {
        auto dataset = std::make_shared<Dataset>(loader_.dataset_);
        readers.push_back([this, dataset, place = loader_.placement_.ahead()](std::int64_t number) {
          if (number >= reading_.size()) return std::optional<Batch>();
          return std::optional<Batch>(detail::placed(dataset->get_batch(reading_.batch(number).samples), place));
        });
      }
      workers_.emplace(std::move(readers), static_cast<std::size_t>(loader_.options_.prefetch_factor));
    }
  }

  DataLoader& loader_;
  EpochReading reading_;
  std::optional<Batch> batch_;
  RunningLoop running_;
  std::optional<Prefetcher<Batch>> workers_;  // last, so that nothing is read when the others go
};

template <typename Dataset>
DataLoader<Dataset>::DataLoader(Dataset dataset, const DataLoaderOptions& options, LoaderGroup group)
    : dataset_(std::move(dataset)),
      options_(options),
      group_(std::move(group)),
      placement_(detail::placement_of<Batch>(options.device, options.non_blocking)),
      cursor_(std::make_shared<EpochCursor>(
          shard_options(options, size_of(dataset_), group_.rank, group_.world_size, group_.accumulation_steps),
          options.sampler, options.batch_sampler)) {
  if (options_.num_workers > 0 && !std::copy_constructible<Dataset>) {
    throw UsageError("num_workers: each worker reads a copy of the dataset, and this one cannot be copied");
  }
}

template <typename Dataset>
typename DataLoader<Dataset>::Iterator DataLoader<Dataset>::begin() {
  return Iterator(std::make_unique<Loop>(*this));
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
