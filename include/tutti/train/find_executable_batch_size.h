#pragma once
// find_executable_batch_size: tries a training function with smaller and smaller batches until it fits into memory, on
// all ranks alike.
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

/// Not even the smallest batch fits.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

/// What a search is told. Every rank gives the same.
struct BatchSizeSearchOptions {
  /// The size of the first attempt, at least 1.
  std::int64_t starting_batch_size = 128;
  /// The size to try after one that does not fit: smaller, and the same on all ranks. Half, where none is set.
  std::function<std::int64_t(std::int64_t)> reduce_batch_size_fn{};
  /// Called on a rank when its attempt has failed, and on all ranks before the next one: lets go what the attempt left
  /// outside of the function. Must not throw, and must not wait for other ranks.
  std::function<void()> clean_up{};
};

/// Whether `error` says that memory ran out: std::bad_alloc, c10::OutOfMemoryError, and what LibTorch's allocators on
/// the CPU and CUDA say. Not what is known of another rank.
bool is_out_of_memory(const std::exception& error);

namespace detail {

enum class AttemptOutcome : std::uint8_t {
  succeeded,
  out_of_memory,
  peer_failed,  ///< another rank failed, or did other things
  failed,
};
struct Attempt {
  AttemptOutcome outcome = AttemptOutcome::succeeded;
  std::string message{};
  std::exception_ptr error{};
};
/// Of the exception that is being handled.
Attempt failed_attempt();

enum class AttemptDecision { succeeded, try_smaller, failed };
/// Pure. Where memory ran out on some rank, what others say of their peers follows from that.
AttemptDecision decide_next_attempt(const std::vector<AttemptOutcome>& ranks);
/// Pure. Throws UsageError where the size does not become smaller; what is not positive is 0.
std::int64_t next_batch_size(std::int64_t batch_size, const BatchSizeSearchOptions& options);

class BatchSizeSearch {
 public:
  BatchSizeSearch(const Communicator& communicator, BatchSizeSearchOptions options);

  std::int64_t batch_size() const { return batch_size_; }
  /// For what one attempt does among ranks.
  Communicator attempt_communicator() const { return communicator_.duplicate("attempt"); }
  /// All ranks begin the same attempt. Throws OutOfMemoryError, UsageError and MismatchError.
  void begin();
  /// Whether the attempt has succeeded on all ranks; if not, the next one is to be tried. Throws where a rank failed
  /// otherwise.
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
    // Let go while an exception unwinds, with what was made over it: so ranks that wait for this one learn of it.
    const Communicator attempt = search.attempt_communicator();
    return body(search.batch_size(), attempt);
  } else {
    return body(search.batch_size());
  }
}

}  // namespace detail

/// Calls `body(batch_size)` or `body(batch_size, communicator)` and, as long as memory runs out in it on any rank,
/// calls it again on all ranks with a smaller size. Returns what it returned, or, where it returns nothing, the size
/// that fits. Every rank must call it, with the same options.
///
/// What an attempt makes over the communicator that `body` is given goes with it, so ranks that wait there for one that
/// ran out of memory learn it at once: make the Accelerator in the body, over that communicator. Ranks that wait over
/// another one wait until its deadline.
///
/// Throws OutOfMemoryError on all ranks where not even the smallest size fits, and UsageError for a size to start with
/// that is not positive. Any other exception of `body` comes out on its rank, and as PeerError naming it on the others.
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
