#pragma once
// A loader over a stream: a dataset that returns its next samples and has no known size. Ranks agree on every batch
// before it is delivered, so all ranks stop at the same batch. docs/data.md says which rank reads which samples.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/data/data_loader_options.h"
#include "tutti/data/to_device.h"
#include "tutti/detail/data/loader_group.h"
#include "tutti/detail/data/loader_iterator.h"
#include "tutti/detail/data/prefetcher.h"
#include "tutti/detail/data/stream_agreement.h"
#include "tutti/detail/data/stream_cursor.h"
#include "tutti/detail/data/stream_reading.h"

namespace tutti {

/// Each begin() iterates over one epoch, or over the rest of it after load_state_dict(). Iterators are single-pass and
/// must not outlive the loader. Only one may exist at a time. Every rank must call begin() and ++ and must leave the
/// loop at the same batch: MismatchError otherwise. An exception of get_batch(), set_epoch(), reset() or skip() is
/// rethrown from the loop in place of its batch, and as PeerError from the loops of the other ranks. A worker calls
/// all. Repeated and filler samples are the tensors of the stream's first batches: a loop that changes batches in place
/// must copy them first. Not thread safe.
template <StreamDataset Dataset>
class StreamLoader {
 public:
  /// The type that the stream's get_batch() returns, cut to this rank's part.
  using Batch = typename StreamReading<Dataset>::Batch;

  /// Accelerator::data_loader() calls it. Throws UsageError if options are out of range or contradict one another, and
  /// for StreamSharding::per_rank on several ranks without LoaderGroup::agreement.
  StreamLoader(Dataset dataset, const StreamLoaderOptions& options, LoaderGroup group = {});
  /// Must not be called while a loop runs.
  StreamLoader(StreamLoader&&) = default;
  StreamLoader& operator=(StreamLoader&&) = default;

  class Loop;
  /// The input iterator that begin() returns.
  using Iterator = LoaderIterator<Loop>;
  /// Begins an epoch. Every rank must call it.
  Iterator begin() { return Iterator(std::make_unique<Loop>(*this)); }
  /// The end of every loop.
  std::default_sentinel_t end() const { return std::default_sentinel; }

  /// The epoch that the next loop reads.
  std::int64_t epoch() const { return cursor_->next_epoch(); }
  /// The next loop reads epoch `epoch`. Every rank must call it with the same number.
  void set_epoch(std::int64_t epoch) { cursor_->set_epoch(epoch); }
  /// The next loop skips its first `batches` batches, as StreamDataset says. Throws UsageError directly
  /// after a load_state() that has set a position inside the epoch: the next loop continues there already.
  void skip_first_batches(std::int64_t batches) { cursor_->skip(batches); }

  /// The position in the stream. Batches that a loop has received count as read; batches read ahead do not.
  const std::shared_ptr<StreamCursor>& cursor() const { return cursor_; }
  /// The position in the stream, for load_state_dict(). Accelerator::save_state() includes it.
  StateDict state_dict() const { return cursor_->state_dict(); }
  /// The next loop starts the stream again and skips the batches that ranks had received. With
  /// StreamSharding::slices the number of ranks may differ. Throws CheckpointError for the state of another loader.
  void load_state_dict(const StateDict& state) { cursor_->load_state_dict(state); }

  /// The stream that loops read.
  Dataset& dataset() { return dataset_; }
  /// The options that the loader was made with.
  const StreamLoaderOptions& options() const { return options_; }
  /// The positions of the running loops.
  const std::shared_ptr<LoaderStack>& stack() const { return group_.stack; }
  /// A description of the options, equal on ranks whose loaders belong together.
  std::string description() const { return describe(options_); }

 private:
  Dataset dataset_;
  StreamLoaderOptions options_;
  LoaderGroup group_;
  std::int64_t batch_size_;
  Placement placement_;
  std::shared_ptr<StreamCursor> cursor_;
  std::shared_ptr<StreamLoopCounter> loop_counter_ = std::make_shared<StreamLoopCounter>();
};

/// One running loop over an epoch. In a round of a stream every rank gets one batch. Of three consecutive rounds the
/// first is in the loop's body, all ranks have agreed on the second, and the agreement on the third is in flight.
template <StreamDataset Dataset>
class StreamLoader<Dataset>::Loop {
 public:
  /// The type of its batches.
  using Batch = StreamLoader::Batch;
  /// A batch and its description.
  using Part = StreamPart<Batch>;

  /// Begins the epoch and reads ahead. StreamLoader::begin() calls it.
  explicit Loop(StreamLoader& loader)
      : loader_(loader),
        loop_guard_(loader.loop_counter_),
        tail_(loader.group_.stack->tail(loader.options_.even_batches)),
        agreement_(loader.group_.agreement, {.sharding = loader.options_.sharding,
                                             .tail = tail_,
                                             .world_size = loader.group_.world_size,
                                             .loop = loop_guard_.number(),
                                             .is_resumed = !loader.cursor_->read_before().empty()}),
        reading_(loader.dataset_,
                 {.sharding = loader.options_.sharding,
                  .rank = loader.group_.rank,
                  .world_size = loader.group_.world_size,
                  .batch_size = loader.batch_size_,
                  .drop_last = loader.options_.drop_last,
                  .tail = tail_},
                 loader.cursor_->next_epoch(), loader.cursor_->read_before()),
        // A stream that is read by a collective cannot be read differently.
        running_(loader.group_.stack,
                 CollectiveStream<Dataset> ? LoopStart{} : loop_start(loader.group_, *loader.cursor_, true)) {
    if (loader.options_.num_workers > 0) start_worker();
    pending_ = start_read_ahead();
    next_ = finish_read_ahead();
  }
  ~Loop() {
    if (number_ != 0) loader_.cursor_->end(number_);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Waits until the ranks have agreed on the next batch. Returns false at the end. Every rank must call it.
  bool advance() {
    if (!next_ || is_gap(*next_)) {
      if (number_ == 0) loader_.cursor_->end(loader_.cursor_->begin());
      return false;
    }
    if (next_->error) std::rethrow_exception(next_->error);
    Part part = std::move(*next_->part);
    Batch batch = detail::placed(std::move(*part.batch), loader_.placement_);
    next_ = finish_read_ahead();
    batch_.emplace(std::move(batch));
    if (number_ == 0) number_ = loader_.cursor_->begin();
    loader_.cursor_->received(number_);
    running_.set(
        {.last_batch = !next_ || is_gap(*next_),
         .uneven = agreement_.ranks_are_independent() || part.uneven || (next_ && next_->part && next_->part->uneven),
         .samples = samples_in(*batch_),
         .repeated = part.repeated,
         .all_repeated = part.all_repeated,
         .filler = part.filler,
         .split = loader_.options_.split_batches,
         .evaluation = loader_.options_.evaluation,
         .loader = loader_.cursor_});
    return true;
  }
  /// The batch of the last advance().
  Batch& batch() { return *batch_; }

 private:
  /// A round that this rank has read or failed to read.
  struct ReadAhead {
    std::optional<Part> part{};
    std::exception_ptr error{};
    std::function<StreamDecision()> decision{};
  };

  /// True if other ranks have a batch in the round and this rank has none.
  static bool is_gap(const ReadAhead& read_ahead) { return !read_ahead.error && !read_ahead.part->batch; }

  void start_worker() {
    typename Prefetcher<Part>::Reader reader = [this, place = loader_.placement_.ahead()](std::int64_t) {
      std::optional<Part> part = reading_.next();
      if (part && part->batch) part->batch.emplace(detail::placed(std::move(*part->batch), place));
      return part;
    };
    std::vector<typename Prefetcher<Part>::Reader> readers;
    readers.push_back(std::move(reader));
    worker_.emplace(std::move(readers), static_cast<std::size_t>(loader_.options_.prefetch_factor));
  }

  /// Reads the next round and starts the agreement on it.
  ReadAhead start_read_ahead() {
    ReadAhead read_ahead;
    try {
      read_ahead.part = worker_ ? worker_->next() : reading_.next();
      const bool has_peers = loader_.group_.world_size > 1;
      if (!read_ahead.part && has_peers && continues_with_fillers() && !reading_.filler()) {
        throw UsageError("this rank's stream is empty, so there is no filler batch for the batches of the other ranks");
      }
      read_ahead.decision = agreement_.start(state_of(read_ahead));
    } catch (...) {
      read_ahead.error = std::current_exception();
      agreement_.fail();
    }
    return read_ahead;
  }

  /// Waits for the agreement on the third round, which becomes the second, and reads the next one. nullopt: the stream
  /// has ended.
  std::optional<ReadAhead> finish_read_ahead() {
    if (!pending_) return std::nullopt;
    std::optional<ReadAhead> read_ahead = std::exchange(pending_, std::nullopt);
    if (read_ahead->error) return read_ahead;
    try {
      if (read_ahead->decision() == StreamDecision::end) return std::nullopt;
      if (!read_ahead->part) read_ahead->part = reading_.filler();  // the worker has ended with the stream
    } catch (...) {
      read_ahead->error = std::current_exception();
      return read_ahead;
    }
    if (!read_ahead->part->last || loader_.options_.sharding == StreamSharding::per_rank) pending_ = start_read_ahead();
    return read_ahead;
  }

  /// Whether this rank gets batches that stand in when its own stream has ended.
  bool continues_with_fillers() const {
    return tail_ == EpochTail::join && loader_.options_.sharding == StreamSharding::per_rank;
  }

  static StreamBatchState state_of(const ReadAhead& read_ahead) {
    if (!read_ahead.part) return StreamBatchState::ended;
    return read_ahead.part->last ? StreamBatchState::available_and_last : StreamBatchState::available;
  }

  StreamLoader& loader_;
  StreamLoopGuard loop_guard_;
  EpochTail tail_;
  StreamAgreement agreement_;
  StreamReading<Dataset> reading_;
  RunningLoop running_;
  std::optional<Batch> batch_;
  std::optional<ReadAhead> next_;
  std::optional<ReadAhead> pending_;
  std::int64_t number_ = 0;                 // the cursor's number of this loop; 0: no batch received yet
  std::optional<Prefetcher<Part>> worker_;  // last: its thread uses the members above and must stop first
};

template <StreamDataset Dataset>
StreamLoader<Dataset>::StreamLoader(Dataset dataset, const StreamLoaderOptions& options, LoaderGroup group)
    : dataset_(std::move(dataset)),
      options_(options),
      group_(std::move(group)),
      batch_size_(checked_batch_size(options, group_)),
      placement_(detail::placement_of<Batch>(options.device, options.non_blocking)),
      cursor_(std::make_shared<StreamCursor>(options.sharding, group_.world_size, batch_size_)) {
  if (CollectiveStream<Dataset> && options.num_workers > 0) {
    throw UsageError(
        "num_workers is " + std::to_string(options.num_workers) +
        ", but reading this stream is a collective, which a worker thread cannot call ahead of the loop: set it to 0");
  }
  if (CollectiveStream<Dataset> && options.sharding != StreamSharding::slices) {
    throw UsageError(
        "reading this stream is a collective, which gives all ranks the same batches, so that with "
        "StreamSharding::per_rank every rank would train on all of them: set StreamSharding::slices");
  }
}

}  // namespace tutti
