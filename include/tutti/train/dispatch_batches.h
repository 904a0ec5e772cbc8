#pragma once
// A stream that rank 0 reads for all (Accelerate's dispatch_batches): for what can be read once only, or is on one
// machine. Every rank receives every batch and its loader keeps what is dealt to it, as if each had read the stream.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "tutti/comm/communicator.h"
#include "tutti/data/data_error.h"
#include "tutti/data/stream_loader.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/train/objects.h"

namespace tutti {

/// A StreamDataset whose batches are objects that can travel (objects.h). The streams of other ranks than 0 are not
/// touched. For loaders with StreamSharding::slices, whose ranks ask for the same batches; without workers (UsageError
/// otherwise).
template <StreamDataset Stream>
class DispatchedStream {
 public:
  /// What the stream's get_batch() gives.
  using Batch = typename StreamReading<Stream>::Batch;
  /// Reading is a call of all ranks: see CollectiveStream.
  static constexpr bool reading_is_collective = true;

  /// Every rank must call it.
  DispatchedStream(Stream stream, const Communicator& communicator)
      : stream_(std::move(stream)), communicator_(communicator.duplicate("dispatched")) {}

  /// Every rank must call it. What rank 0's stream throws is thrown there, and is a DataError on the others.
  std::optional<Batch> get_batch(std::size_t batch_size) {
    // What went wrong, or a batch.
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

  /// The stream's set_epoch() on rank 0, if it has one.
  void set_epoch(std::int64_t epoch) {
    if constexpr (requires { stream_.set_epoch(epoch); }) {
      if (communicator_.rank() == 0) stream_.set_epoch(epoch);
    }
  }
  /// The stream's reset() on rank 0, if it has one.
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
