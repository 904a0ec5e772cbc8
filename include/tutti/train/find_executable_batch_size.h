#pragma once
// find_executable_batch_size: runs a training function with decreasing batch sizes until it fits into memory on all
// ranks.
#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

namespace tutti {

/// Thrown on all ranks if even the smallest batch size does not fit into memory.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

/// Options of a search. Every rank must pass the same.
struct BatchSizeSearchOptions {
  /// Batch size of the first attempt, at least 1.
  std::int64_t starting_batch_size = 128;
  /// Returns the size to try after one that did not fit: smaller, and equal on all ranks. Unset: half the size.
  std::function<std::int64_t(std::int64_t)> reduce_batch_size_fn{};
  /// Releases what an attempt left outside of the function. Called on a rank when its attempt has failed, and on the
  /// other ranks before the next attempt. Must not throw, and must not wait for other ranks. Afterwards the
  /// accelerator's allocator returns its free memory to the device.
  std::function<void()> clean_up{};
};

/// True if `error` reports that memory ran out on this rank: std::bad_alloc, c10::OutOfMemoryError, and the messages of
/// LibTorch's allocators for the CPU and CUDA. False for an error that reports the failure of another rank.
bool is_out_of_memory(const std::exception& error);

namespace detail {

enum class AttemptOutcome : std::uint8_t {
  succeeded,
  out_of_memory,
  peer_failed,  ///< PeerError or MismatchError: another rank failed, or made other calls
  failed,
};
struct Attempt {
  AttemptOutcome outcome = AttemptOutcome::succeeded;
  std::string message{};
  std::exception_ptr error{};
};
/// The outcome for the exception that is being handled.
Attempt failed_attempt();

enum class AttemptDecision { succeeded, try_smaller, failed };
/// No I/O. If memory ran out on some rank, peer_failed on other ranks counts as its consequence.
AttemptDecision decide_next_attempt(const std::vector<AttemptOutcome>& ranks);
/// No I/O. Throws UsageError if the size does not become smaller. Returns 0 for a size that is not positive.
std::int64_t next_batch_size(std::int64_t batch_size, const BatchSizeSearchOptions& options);

class BatchSizeSearch {
 public:
  BatchSizeSearch(const Communicator& communicator, BatchSizeSearchOptions options);

  std::int64_t batch_size() const { return batch_size_; }
  /// A communicator for the collectives of one attempt.
  Communicator attempt_communicator() const { return communicator_.duplicate("attempt"); }
  /// Begins the attempt on all ranks. Throws OutOfMemoryError, UsageError and MismatchError.
  void begin();
  /// Returns true if the attempt succeeded on all ranks, and false if the next size is to be tried. Throws if a rank
  /// failed for another reason than memory.
  bool end(const Attempt& local);

 private:
  void clean_up() const;

  Communicator communicator_;
  BatchSizeSearchOptions options_;
  std::int64_t batch_size_;
  std::string last_message_;
};

template <typename Body>
auto try_batch_size(Body& body, const BatchSizeSearch& search) {
  if constexpr (std::invocable<Body&, std::int64_t, const Communicator&>) {
    // Destroyed during unwinding, with the objects that use it, so that ranks waiting for this one fail at once.
    const Communicator attempt = search.attempt_communicator();
    return body(search.batch_size(), attempt);
  } else {
    return body(search.batch_size());
  }
}

}  // namespace detail

/// Calls `body(batch_size)` or `body(batch_size, communicator)`. While memory runs out in it on any rank, calls it
/// again on all ranks with a smaller size. Returns the result of `body`, or the size that fits if `body` returns void.
/// Every rank must call it, with the same options.
///
/// The communicator passed to `body` is destroyed after a failed attempt. Ranks that wait on it for a rank that ran out
/// of memory then fail at once: create the Accelerator in the body, over that communicator. Ranks that wait on another
/// communicator wait until its deadline.
///
/// Throws OutOfMemoryError on all ranks if even the smallest size does not fit, and UsageError if the first size is not
/// positive. Any other exception of `body` is rethrown on its rank; the other ranks throw PeerError with that rank.
template <typename Body>
auto find_executable_batch_size(const Communicator& communicator, Body&& body,
                                const BatchSizeSearchOptions& options = {}) {
  detail::BatchSizeSearch search(communicator, options);
  using Result = decltype(detail::try_batch_size(body, search));
  for (;;) {
    search.begin();
    detail::Attempt attempt;
    if constexpr (std::is_void_v<Result>) {
      try {
        detail::try_batch_size(body, search);
      } catch (...) {
        attempt = detail::failed_attempt();
      }
      const auto batch_size = search.batch_size();
      if (search.end(attempt)) return batch_size;
    } else {
      std::optional<Result> result;
      try {
        result.emplace(detail::try_batch_size(body, search));
      } catch (...) {
        attempt = detail::failed_attempt();
      }
      if (search.end(attempt)) return std::move(*result);
    }
  }
}

}  // namespace tutti
