#pragma once
// What ranks tell one another around a round, and what follows from it. Pure: every rank judges the same headers and
// comes to the same verdict, so a round ends in agreement or in an error on all ranks.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sync/sync_policy.h"
#include "sync/window.h"

namespace tutti::sync {

/// Sent when a round begins, before any bucket is summed.
struct SyncHeader {
  std::int64_t step = 0;    ///< windows that this rank has consumed so far
  std::int64_t passes = 0;  ///< of this rank in the window
  Weighting weighting = Weighting::undecided;
  double weight = 0;                   ///< of this rank's part of the window
  std::int32_t carried_over = 0;       ///< 1: the window began on gradients of the window before
  std::int32_t only_carried_over = 0;  ///< 1: this rank has nothing but those
  double loss_scale = 1;               ///< what this rank's losses were multiplied by
  WindowLengths lengths{};             ///< for the automatic policy
  std::uint64_t parameters = 0;        ///< a sampled hash of this rank's parameters
  double seconds_waited = 0;           ///< seconds, in this rank's last round
};

/// What every rank concludes from the openings.
struct SyncPlan {
  Weighting weighting = Weighting::plain;
  double total_weight = 0;              ///< of all ranks; the number of ranks where the window is plain
  double scale = 1;                     ///< what sums are multiplied by
  bool parameters_differ = false;       ///< parameters differ between ranks
  bool empty = false;                   ///< no rank has run a pass: there is nothing to sum
  bool only_carried_over = false;       ///< all there is was left by the window before
  std::optional<std::string> mismatch;  ///< why the round's result is no gradient
};

/// Sent when a rank's pass has ended; the bits of the parameters that it used follow.
struct SyncTrailer {
  bool aborted = false;              ///< an exception ended a pass of this rank's window
  bool needs_another_sync = false;   ///< a gradient came after its bucket had left: one more round is needed
  bool can_rebuild_buckets = false;  ///< its gradients may change places: nobody holds memory of theirs
  std::array<char, 125> reason{};    ///< zero-terminated
};

SyncPlan make_sync_plan(std::span<const SyncHeader> headers);

/// What is wrong with a round of which some rank abandoned its part, naming the ranks; nullopt if none did.
std::optional<std::string> describe_aborts(std::span<const SyncTrailer> trailers);

/// Whether some rank needs one more round.
bool any_needs_another_sync(std::span<const SyncTrailer> trailers);

/// By rank, seconds that it waited less than the rank that waited longest, in the round before.
std::vector<double> straggler_times(std::span<const SyncHeader> headers);

/// Whether the gradients of all ranks may change places.
bool all_can_rebuild_buckets(std::span<const SyncTrailer> trailers);

SyncTrailer aborted_trailer(std::string_view reason);

}  // namespace tutti::sync
