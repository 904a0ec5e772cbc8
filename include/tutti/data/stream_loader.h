#pragma once
// A loader over a stream: a dataset that gives the next samples and does not know how many there are. Ranks agree on
// every batch before it is delivered, so all of them stop at the same one. What is dealt to whom is in docs/data.md.
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
#include "tutti/data/stream_loader_options.h"
#include "tutti/data/to_device.h"
#include "tutti/detail/data/loader_group.h"
#include "tutti/detail/data/loader_iterator.h"
#include "tutti/detail/data/prefetcher.h"
#include "tutti/detail/data/stream_agreement.h"
#include "tutti/detail/data/stream_cursor.h"
#include "tutti/detail/data/stream_reading.h"

namespace tutti {

/// Iterates over one epoch per begin(), or over what is left of it after load_state_dict(). Iterators are single-pass
/// and must not outlive the loader, and there is one at a time. Every rank calls begin() and ++ alike, and leaves the
/// loop at the same batch: MismatchError otherwise. What get_batch() throws comes out of the loop where its batch would
/// have come, and out of the other ranks' loops as PeerError. Not thread safe.
template <StreamDataset Dataset>
class StreamLoader {
 public:
  /// What the stream's get_batch() gives, cut to this rank's part.
  using Batch = typename StreamReading<Dataset>::Batch;

  /// Accelerator::data_loader() makes one. Throws UsageError for options out of range or against one another, and where
  /// ranks with streams of their own have no agreement.
  StreamLoader(Dataset dataset, const StreamLoaderOptions& options, LoaderGroup group = {});
  /// Moves; not while a loop runs.
  StreamLoader(StreamLoader&&) = default;
  StreamLoader& operator=(StreamLoader&&) = default;

  class Loop;
  /// What begin() gives: an input iterator.
  using Iterator = LoaderIterator<Loop>;
  /// Begins an epoch. Every rank must call it.
  Iterator begin() { return Iterator(std::make_unique<Loop>(*this)); }
  /// The end of every loop.
  std::default_sentinel_t end() const { return std::default_sentinel; }

  /// The epoch that the next loop reads.
  std::int64_t epoch() const { return cursor_->next_epoch(); }
  /// The epoch that the next loop reads. Must be called on all ranks alike.
  void set_epoch(std::int64_t epoch) { cursor_->set_epoch(epoch); }
  /// The next loop leaves out its first `batches` batches: it reads the samples and drops them.
  void skip_first_batches(std::int64_t batches) { cursor_->skip(batches); }

  /// Where reading stands; batches that a loop has received count as read, what was read ahead does not.
  const std::shared_ptr<StreamCursor>& cursor() const { return cursor_; }
  /// Where reading stands, for load_state_dict(). An Accelerator saves it with the rest.
  StateDict state_dict() const { return cursor_->state_dict(); }
  /// The next loop reads the stream from its start and leaves out what ranks had received, also on another number of
  /// ranks where all read the same stream. Throws CheckpointError for the state of another loader.
  void load_state_dict(const StateDict& state) { cursor_->load_state_dict(state); }

  /// What loops read.
  Dataset& dataset() { return dataset_; }
  /// What the loader was told.
  const StreamLoaderOptions& options() const { return options_; }
  /// Where the running loops stand.
  const std::shared_ptr<LoaderStack>& stack() const { return group_.stack; }
  /// What is read, in words: the same on ranks whose loaders belong together.
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

/// One loop over an epoch, while it runs. Of three rounds in a row the first is in the body, the second is known to
/// exist everywhere, and the third has been read here and is being agreed on.
template <StreamDataset Dataset>
class StreamLoader<Dataset>::Loop {
 public:
  /// What a loop gives.
  using Batch = StreamLoader::Batch;
  /// A batch and what is known of it.
  using Part = StreamPart<Batch>;

  /// Begins the epoch and reads ahead. StreamLoader::begin() makes one.
  explicit Loop(StreamLoader& loader)
      : loader_(loader),
        loop_guard_(loader.loop_counter_),
        tail_(loader.group_.stack->tail(loader.options_.even_batches)),
        agreement_(loader.group_.agreement, {.sharding = loader.options_.sharding,
                                             .tail = tail_,
                                             .rank = loader.group_.rank,
                                             .world_size = loader.group_.world_size,
                                             .loop = loop_guard_.number()}),
        reading_(loader.dataset_,
                 {.sharding = loader.options_.sharding,
                  .rank = loader.group_.rank,
                  .world_size = loader.group_.world_size,
                  .batch_size = loader.batch_size_,
                  .drop_last = loader.options_.drop_last,
                  .tail = tail_},
                 loader.cursor_->next_epoch(), loader.cursor_->read_before()),
        running_(loader.group_.stack) {
    if (loader.options_.num_workers > 0) start_worker();
    pending_ = start_read_ahead();
    next_ = finish_read_ahead();
  }
  ~Loop() {
    if (number_ != 0) loader_.cursor_->end(number_);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Waits until the ranks have agreed on the next batch; false where there is none. Every rank must call it.
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
    running_.set({.last_batch = !next_ || is_gap(*next_),
                  .uneven = agreement_.ranks_are_independent() || (next_ && next_->part && next_->part->uneven),
                  .samples = samples_in(*batch_),
                  .repeated = part.repeated,
                  .all_repeated = part.all_repeated,
                  .filler = part.filler});
    return true;
  }
  /// The batch of the last advance().
  Batch& batch() { return *batch_; }

 private:
  /// A round that this rank has read, or could not read.
  struct ReadAhead {
    std::optional<Part> part{};
    std::exception_ptr error{};
    std::function<StreamDecision()> decision{};
  };

  /// Other ranks have a batch, this one has not.
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

  /// Reads the next round, and starts to agree on it.
  ReadAhead start_read_ahead() {
    ReadAhead read_ahead;
    try {
      read_ahead.part = worker_ ? worker_->next() : reading_.next();
      if (!read_ahead.part && continues_with_fillers() && !reading_.filler()) {
        throw UsageError("this rank's stream has no batch at all, so nothing can stand in while others read theirs");
      }
      read_ahead.decision = agreement_.start(state_of(read_ahead));
    } catch (...) {
      read_ahead.error = std::current_exception();
      agreement_.fail();
    }
    return read_ahead;
  }

  /// What the third round turns out to be: it becomes the second one, and the next is read. nullopt: there is none.
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
  std::int64_t number_ = 0;                 // of the loop as the cursor counts; 0: nothing received yet
  std::optional<Prefetcher<Part>> worker_;  // last, so that nothing is read when the others go
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
        ", but all ranks read this stream together, which a thread cannot do ahead of the loop: set it to 0");
  }
}

}  // namespace tutti
