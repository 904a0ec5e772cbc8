#pragma once
// A loader over a map-style dataset. It reads this rank's shard, knows one batch ahead where the epoch ends, and can be
// resumed at its position. docs/data.md says which rank reads which samples.
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
#include "tutti/detail/data/dataset_members.h"
#include "tutti/detail/data/epoch_cursor.h"
#include "tutti/detail/data/loader_group.h"
#include "tutti/detail/data/loader_iterator.h"
#include "tutti/detail/data/prefetcher.h"

namespace tutti {

/// A dataset that can be sharded: it has get_batch(indices) and size(), as torch::data::datasets have (mapped and
/// shared datasets too). A torch::data loader cannot be sharded, because its sampler is private.
template <typename Dataset>
concept IndexedDataset = requires(Dataset& dataset, const std::vector<std::size_t>& indices) {
  dataset.get_batch(indices);
  dataset.size();
};

/// Each begin() iterates over one epoch, or over the rest of it after load_state_dict(). The next begin() iterates over
/// the next epoch. Iterators are single-pass and must not outlive the loader. Leaving the loop early ends the epoch.
/// Loops over one loader may nest; the one that received a batch last is the position in checkpoints, and each takes an
/// epoch's number. An exception of get_batch(), on a worker too, is rethrown from the loop in place of its batch.
/// Copies share their position in the data. Not thread safe.
template <typename Dataset>
class DataLoader {
  static_assert(
      IndexedDataset<Dataset>,
      "tutti::DataLoader makes its own shard of a dataset with size() and get_batch(indices); pass the dataset, "
      "not a ready loader");

 public:
  /// The type that the dataset's get_batch() returns.
  using Batch = decltype(std::declval<Dataset&>().get_batch(std::declval<const std::vector<std::size_t>&>()));

  /// Accelerator::data_loader() calls it. Throws UsageError if the dataset is empty, options are out of range or
  /// contradict one another, or drop_last leaves no batch.
  DataLoader(Dataset dataset, const DataLoaderOptions& options, LoaderGroup group);
  /// The same without an Accelerator: reads the shard of rank `rank` of `world_size`. `accumulation_steps` is used by
  /// Sharding::blocks_by_window only.
  DataLoader(Dataset dataset, const DataLoaderOptions& options, int rank = 0, int world_size = 1,
             std::int64_t accumulation_steps = 1, std::shared_ptr<LoaderStack> stack = std::make_shared<LoaderStack>())
      : DataLoader(std::move(dataset), options,
                   LoaderGroup{.rank = rank,
                               .world_size = world_size,
                               .accumulation_steps = accumulation_steps,
                               .stack = std::move(stack)}) {}

  class Loop;
  /// The input iterator that begin() returns.
  using Iterator = LoaderIterator<Loop>;
  /// Begins an epoch; a range-based for loop calls it. With an Accelerator and a sampler every rank must call it.
  Iterator begin();
  /// The end of every loop.
  std::default_sentinel_t end() const { return std::default_sentinel; }

  /// Number of batches of the whole next epoch on this rank. Equal on all ranks, except without even_batches outside a
  /// JoinScope.
  std::int64_t size() const {
    const bool own = group_.stack->tail(options_.even_batches) == EpochTail::shorten;
    return own ? cursor_->local_batches_per_epoch() : cursor_->batches_per_epoch();
  }
  /// The epoch that the next loop reads.
  std::int64_t epoch() const { return cursor_->next_epoch(); }
  /// The next loop reads epoch `epoch`. Every rank must call it with the same number. If load_state_dict() has set this
  /// epoch already, its position in the epoch is kept.
  void set_epoch(std::int64_t epoch) { cursor_->set_epoch(epoch); }
  /// The next loop skips its first `batches` batches; later loops skip none. Every rank must call it with the same
  /// number, after set_epoch(). Throws UsageError if fewer batches are left, and directly after a load_state() that has
  /// set a position inside the epoch: the next loop continues there already.
  void skip_first_batches(std::int64_t batches) { cursor_->skip(batches); }

  /// The position in the data, for checkpoints. Batches that a loop has received count as read, including the one in
  /// its body. Batches that workers have read ahead do not.
  const std::shared_ptr<EpochCursor>& cursor() const { return cursor_; }
  /// The position in the data, for load_state_dict(). Accelerator::save_state() includes it.
  StateDict state_dict() const { return cursor_->state_dict(); }
  /// The next loop continues after the batches that were read when the state was saved. With the same number of ranks
  /// and batch size it reads the same batches as an uninterrupted loop. Otherwise the samples that no rank has read are
  /// sharded again. If no batch is left, the next loop is empty and the one after it reads the next epoch. Throws
  /// CheckpointError for the state of another loader.
  void load_state_dict(const StateDict& state) { cursor_->load_state_dict(state); }

  /// The dataset that loops read and that workers copy.
  Dataset& dataset() { return dataset_; }
  /// The options that the loader was made with.
  const DataLoaderOptions& options() const { return options_; }
  /// The positions of the running loops.
  const std::shared_ptr<LoaderStack>& stack() const { return group_.stack; }
  /// A description of dataset and options, equal on ranks whose loaders belong together.
  std::string description() const { return describe(options_, cursor_->options().dataset_size); }

 private:
  static std::int64_t size_of(const Dataset& dataset);

  Dataset dataset_;
  DataLoaderOptions options_;
  LoaderGroup group_;
  Placement placement_;
  std::shared_ptr<EpochCursor> cursor_;
};

/// One running loop over an epoch.
template <typename Dataset>
class DataLoader<Dataset>::Loop {
 public:
  /// The type of its batches.
  using Batch = DataLoader::Batch;

  /// Begins the epoch. DataLoader::begin() calls it.
  explicit Loop(DataLoader& loader)
      : loader_(loader),
        reading_(loader.cursor_, loader.group_.stack->tail(loader.options_.even_batches), loader.group_.agreement),
        running_(loader.group_.stack, loop_start(loader.group_, *loader.cursor_,
                                                 loader.options_.shuffle || loader.cursor_->sampled_by_user())) {
    detail::set_epoch_of(loader.dataset_, reading_.epoch());
    if (reading_.size() > 0 && loader.options_.num_workers > 0) start_workers();
  }

  /// Reads the next batch of this rank. Returns false at the end.
  bool advance() {
    if (reading_.batches_left() == 0) {
      if (reading_.size() == 0) loader_.cursor_->end(loader_.cursor_->begin());
      return false;
    }
    const EpochBatch next = reading_.batch(reading_.size() - reading_.batches_left());
    std::optional<Batch> read = workers_ ? workers_->next() : loader_.dataset_.get_batch(next.samples);
    if (!read) return false;  // the workers ended with the exception of an earlier batch
    batch_.emplace(detail::placed(std::move(*read), loader_.placement_));
    reading_.received();
    running_.set({.last_batch = reading_.batches_left() == 0,
                  .uneven = reading_.uneven(),
                  .samples = static_cast<std::int64_t>(next.samples.size()),
                  .repeated = next.repeated,
                  .filler = next.filler,
                  .split = loader_.options_.split_batches,
                  .evaluation = loader_.options_.evaluation,
                  .loader = loader_.cursor_});
    return true;
  }
  /// The batch of the last advance().
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
  std::optional<Prefetcher<Batch>> workers_;  // last: its threads use the members above and must stop first
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
    throw UsageError("num_workers: each worker reads a copy of the dataset, and this dataset cannot be copied");
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
    return checked_dataset_size(size);
  } else {
    // torch::data::datasets return an optional, empty for streams.
    if (!size) throw UsageError("the dataset has no size, so it cannot be sharded: pass a dataset whose size() is set");
    return checked_dataset_size(*size);
  }
}

}  // namespace tutti
