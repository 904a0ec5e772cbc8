#pragma once
// The sync headers and trailers, and the decisions that follow from them. No I/O: every rank evaluates the same headers
// with the same result, so a synchronization succeeds on all ranks or fails on all ranks.
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sync/sync_policy.h"
#include "sync/window.h"
#include "tutti/sync/reducer_options.h"

namespace tutti::sync {

/// Sent at the start of a synchronization, before any bucket is summed.
struct SyncHeader {
  std::int64_t step = 0;                       ///< windows that this rank has consumed so far
  std::int64_t has_gradients = 0;              ///< 1: this rank has something to sum
  Weighting weighting = Weighting::undecided;  ///< undecided if this rank has no gradients
  double weight = 0;                           ///< of this rank's part of the window
  std::int32_t carried_over = 0;               ///< 1: the window began with gradients of the previous window
  std::int32_t only_carried_over = 0;          ///< 1: this rank has no other gradients
  double loss_scale = 1;                       ///< factor on this rank's losses
  WindowLengths lengths{};                     ///< for the automatic policy
  std::uint64_t parameters = 0;                ///< a sampled hash of this rank's parameters
  std::int32_t in_pass = 0;                    ///< 1: a backward pass began the synchronization, 0: a later call
  std::int32_t joined = 0;                     ///< 1: this rank's pass has reached other parts of the model only
  std::uint64_t compared_only = 0;  ///< a hash of parameters whose gradients the reducer does not synchronize
  std::uint64_t step_options = 0;   ///< a hash of what this rank's steps depend on besides gradients
  BatchPosition batch{};            ///< where this rank is in its data
  double seconds_waited = 0;        ///< in this rank's last synchronization
  /// The newest sample of tensors on a device that this rank's device has delivered: see DeviceSamples.
  std::int64_t samples_arrived = std::numeric_limits<std::int64_t>::max();
};

/// The result of evaluating the headers; equal on all ranks.
struct SyncPlan {
  Weighting weighting = Weighting::undecided;
  double total_weight = 0;              ///< of all ranks; the number of ranks if the window is plain
  double scale = 1;                     ///< factor on the sums
  bool parameters_differ = false;       ///< parameters differ between ranks
  bool compared_only_differ = false;    ///< the same for parameters that are only compared
  bool step_options_differ = false;     ///< ranks step differently
  std::int64_t samples_arrived = 0;     ///< the newest sample that has arrived on all ranks
  bool in_pass = false;                 ///< a pass of any rank that has reached the parameters began it
  bool same_place = false;              ///< all ranks are in a backward pass, or all in a later call
  bool batches_may_differ = false;      ///< positions in the data cannot be compared, now and later
  bool unreached = false;               ///< the pass has reached other parts of the model only, on all ranks
  bool empty = false;                   ///< the same, or no rank has run a pass: there is nothing to sum
  bool only_carried_over = false;       ///< all gradients belong to the previous window
  std::optional<std::string> mismatch;  ///< why the synchronization must fail
};

/// Sent when a rank's pass has ended. One bit per parameter follows: whether the rank used it.
struct SyncTrailer {
  bool aborted = false;              ///< an exception ended a pass of this rank's window
  bool needs_another_sync = false;   ///< a gradient changed after its bucket's start: another sync is needed
  bool can_rebuild_buckets = false;  ///< its gradients may move: the program holds no tensor over their memory
  std::array<char, 125> reason{};    ///< zero-terminated
};

SyncPlan make_sync_plan(std::span<const SyncHeader> headers);

/// A message that names the ranks that aborted the synchronization and their reasons; nullopt if none did.
std::optional<std::string> describe_aborts(std::span<const SyncTrailer> trailers);

/// Whether any rank needs another synchronization.
bool any_needs_another_sync(std::span<const SyncTrailer> trailers);

/// By rank, the difference in seconds to the rank that waited longest, in the previous synchronization.
std::vector<double> straggler_times(std::span<const SyncHeader> headers);

/// Whether the gradients of all ranks may move.
bool all_can_rebuild_buckets(std::span<const SyncTrailer> trailers);

SyncTrailer aborted_trailer(std::string_view reason);

}  // namespace tutti::sync
