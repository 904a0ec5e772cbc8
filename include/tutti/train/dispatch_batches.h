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

  /// Every rank must call it. An exception of rank 0's stream is rethrown on rank 0; the other ranks throw DataError.
  std::optional<Batch> get_batch(std::size_t batch_size) {
    // An error message, or a batch.
    using Answer = std::pair<std::string, std::optional<Batch>>;
    Answer answer;
    std::exception_ptr thrown;
    if (communicator_.rank() == 0) {
      try {
        answer.second = stream_.get_batch(batch_size);
      } catch (const std::exception& error) {
        thrown = std::current_exception();
        answer.first = std::string("rank 0 could not read the stream: ") + error.what();
      }
    }
    answer = unpack<Answer>(communicator_.broadcast_object(pack(answer), 0, comm::internal_call("dispatched batch")));
    if (thrown) std::rethrow_exception(thrown);
    if (!answer.first.empty()) throw DataError(answer.first);
    return std::move(answer.second);
  }

  /// Calls the stream's set_epoch() on rank 0, if it has one.
  void set_epoch(std::int64_t epoch) {
    if constexpr (requires { stream_.set_epoch(epoch); }) {
      if (communicator_.rank() == 0) stream_.set_epoch(epoch);
    }
  }
  /// Calls the stream's reset() on rank 0, if it has one.
  void reset() {
    if constexpr (requires { stream_.reset(); }) {
      if (communicator_.rank() == 0) stream_.reset();
    }
  }

 private:
  Stream stream_;
  Communicator communicator_;
};

}  // namespace tutti
