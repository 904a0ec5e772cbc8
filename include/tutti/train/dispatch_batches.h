#pragma once
// A stream that rank 0 reads for all ranks (Accelerate's dispatch_batches), for streams that can be read only once or
// exist on one machine. Every rank receives every batch, and its loader keeps this rank's part.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"
#include "tutti/data/stream_loader.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/detail/data/dataset_members.h"
#include "tutti/detail/train/objects.h"

namespace tutti {

/// A StreamDataset whose batches are Packable (objects.h). The streams of ranks other than 0 are not used. For loaders
/// with StreamSharding::slices, whose ranks request the same batches, and without workers (UsageError otherwise).
template <StreamDataset Stream>
class DispatchedStream {
 public:
  /// The type that the stream's get_batch() returns.
  using Batch = typename StreamReading<Stream>::Batch;
  /// Reading is a collective: see CollectiveStream.
  static constexpr bool reading_is_collective = true;

  /// Every rank must call it.
  DispatchedStream(Stream stream, const Communicator& communicator)
      : stream_(std::move(stream)), communicator_(communicator.duplicate("dispatched")) {}

  /// Every rank must call it. An exception of rank 0's stream, also of its set_epoch(), reset() or skip(), is rethrown
  /// on rank 0; the other ranks throw DataError.
  std::optional<Batch> get_batch(std::size_t batch_size) {
    // An error message, or a batch.
    using Answer = std::pair<std::string, std::optional<Batch>>;
    std::string bytes;
    std::exception_ptr thrown;
    if (communicator_.rank() == 0) {
      try {
        move_stream();
        bytes = pack(Answer({}, stream_.get_batch(batch_size)));
      } catch (const std::exception& error) {
        thrown = std::current_exception();
        bytes = pack(Answer(std::string("rank 0 could not read the stream: ") + error.what(), std::nullopt));
      }
    }
    auto answer = unpack<Answer>(communicator_.broadcast_object(bytes, 0, comm::internal_call("dispatched batch")));
    if (thrown) std::rethrow_exception(thrown);
    if (!answer.first.empty()) throw DataError(answer.first);
    return std::move(answer.second);
  }

  /// The next get_batch() first calls the stream's set_epoch() on rank 0, if it has one.
  void set_epoch(std::int64_t epoch) { new_epoch_ = epoch; }
  /// The next get_batch() first calls the stream's reset() on rank 0, if it has one.
  void reset() { must_reset_ = true; }
  /// The next get_batch() first calls the stream's skip() on rank 0.
  void skip(std::size_t samples) requires detail::can_skip<Stream> { skipped_ += samples; }

 private:
  // Within get_batch(), so that the other ranks learn of an exception.
  void move_stream() {
    const auto epoch = std::exchange(new_epoch_, std::nullopt);
    const bool resets = std::exchange(must_reset_, false);
    if (epoch) detail::set_epoch_of(stream_, *epoch);
    if constexpr (requires { stream_.reset(); }) {
      if (resets) stream_.reset();
    }
    if constexpr (detail::can_skip<Stream>) {
      if (const std::size_t samples = std::exchange(skipped_, 0)) detail::skip_samples(stream_, samples);
    }
  }

  Stream stream_;
  Communicator communicator_;
  std::optional<std::int64_t> new_epoch_{};
  bool must_reset_ = false;
  std::size_t skipped_ = 0;
};

}  // namespace tutti
