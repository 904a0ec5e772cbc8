#include "tutti/train/find_executable_batch_size.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

#include "device/devices.h"
#include "device/error_text.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/detail/train/objects.h"

namespace tutti {

namespace {

constexpr std::array<std::string_view, 5> allocator_messages{"out of memory", "can't allocate memory",
                                                             "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED",
                                                             "CUDNN_STATUS_ALLOC_FAILED"};

}  // namespace

bool is_out_of_memory(const std::exception& error) {
  // The messages of tutti's own errors may quote another rank's message.
  if (dynamic_cast<const Error*>(&error) != nullptr) return false;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const std::string message = error_text(error);
  return std::ranges::any_of(allocator_messages,
                             [&](std::string_view part) { return message.find(part) != std::string::npos; });
}

namespace detail {

Attempt failed_attempt() {
  Attempt attempt{
      .outcome = AttemptOutcome::failed, .message = "an exception of unknown type", .error = std::current_exception()};
  try {
    throw;
  } catch (const std::exception& error) {
    attempt.message = error_text(error);
    const bool of_peers =
        dynamic_cast<const PeerError*>(&error) != nullptr || dynamic_cast<const MismatchError*>(&error) != nullptr;
    if (is_out_of_memory(error)) attempt.outcome = AttemptOutcome::out_of_memory;
    if (of_peers) attempt.outcome = AttemptOutcome::peer_failed;
  } catch (...) {
    // An exception of unknown type.
  }
  return attempt;
}

AttemptDecision decide_next_attempt(const std::vector<AttemptOutcome>& ranks) {
  const auto some = [&](AttemptOutcome outcome) { return std::ranges::find(ranks, outcome) != ranks.end(); };
  if (some(AttemptOutcome::failed)) return AttemptDecision::failed;
  if (some(AttemptOutcome::out_of_memory)) return AttemptDecision::try_smaller;
  return some(AttemptOutcome::peer_failed) ? AttemptDecision::failed : AttemptDecision::succeeded;
}

std::int64_t next_batch_size(std::int64_t batch_size, const BatchSizeSearchOptions& options) {
  const auto next = options.reduce_batch_size_fn ? options.reduce_batch_size_fn(batch_size) : batch_size / 2;
  if (next >= batch_size) {
    throw UsageError("find_executable_batch_size: reduce_batch_size_fn returned " + std::to_string(next) + " for " +
                     std::to_string(batch_size) + ": it must return a smaller size");
  }
  return std::max<std::int64_t>(next, 0);
}

BatchSizeSearch::BatchSizeSearch(const Communicator& communicator, BatchSizeSearchOptions options)
    : communicator_(communicator.duplicate("batch size search")),
      options_(std::move(options)),
      batch_size_(options_.starting_batch_size) {}

void BatchSizeSearch::begin() {
  communicator_.barrier(comm::internal_call("find_executable_batch_size with " + std::to_string(batch_size_))).wait();
  if (batch_size_ > 0) return;
  if (last_message_.empty()) {
    throw UsageError("find_executable_batch_size: starting_batch_size is " + std::to_string(batch_size_) +
                     ": it must be positive");
  }
  throw OutOfMemoryError("no executable batch size found, reached 0: " + last_message_);
}

void BatchSizeSearch::clean_up() const {
  if (options_.clean_up) options_.clean_up();
  devices::empty_cache();
}

bool BatchSizeSearch::end(const Attempt& local) {
  const bool left_over = local.outcome != AttemptOutcome::succeeded;
  if (left_over) clean_up();
  std::vector<std::string> answers;
  try {
    answers = communicator_.all_gather_object(pack(std::pair(local.outcome, local.message)),
                                              comm::internal_call("find_executable_batch_size"));
  } catch (const Error& error) {
    if (local.outcome != AttemptOutcome::out_of_memory) throw;
    throw OutOfMemoryError("find_executable_batch_size with " + std::to_string(batch_size_) +
                           ": memory ran out on rank " + std::to_string(communicator_.rank()) + " (" + local.message +
                           "), and other ranks do not leave the attempt: its collectives need the communicator of the "
                           "attempt, see docs/collectives.md. (" +
                           error.what() + ")");
  }
  std::vector<AttemptOutcome> ranks;
  std::vector<int> failed_ranks;
  std::string failures;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    const auto [outcome, message] = unpack<std::pair<AttemptOutcome, std::string>>(answers[rank]);
    ranks.push_back(outcome);
    const std::string line = "rank " + std::to_string(rank) + ": " + message;
    if (outcome == AttemptOutcome::out_of_memory) last_message_ = line;
    if (outcome != AttemptOutcome::failed) continue;
    failed_ranks.push_back(static_cast<int>(rank));
    failures += (failures.empty() ? "" : "; ") + line;
  }
  switch (decide_next_attempt(ranks)) {
    case AttemptDecision::succeeded:
      return true;
    case AttemptDecision::failed:
      // If no rank reported a root cause, this rank's own exception says most.
      if (local.outcome == AttemptOutcome::failed || (failed_ranks.empty() && local.error)) {
        std::rethrow_exception(local.error);
      }
      if (failed_ranks.empty()) failures = "several ranks failed, and each one names another rank as the cause";
      throw PeerError("find_executable_batch_size with " + std::to_string(batch_size_) + ": " + failures, failed_ranks);
    case AttemptDecision::try_smaller:
      break;
  }
  if (!left_over) clean_up();
  batch_size_ = next_batch_size(batch_size_, options_);
  return false;
}

}  // namespace detail

}  // namespace tutti
