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
struct RoundOpening {
  std::int64_t step = 0;    ///< windows that this rank has consumed so far
  std::int64_t passes = 0;  ///< of this rank in the window
  Weighting weighting = Weighting::undecided;
  double weight = 0;             ///< of this rank's part of the window
  std::int32_t kept = 0;         ///< 1: the window began on gradients of the window before
  std::int32_t over = 0;         ///< 1: this rank has nothing but those
  double loss_scale = 1;         ///< what this rank's losses were multiplied by
  WindowLengths lengths{};       ///< for the automatic policy
  std::uint64_t parameters = 0;  ///< a sampled hash of this rank's parameters
  double waited = 0;             ///< seconds, in this rank's last round
};

/// What every rank concludes from the openings.
struct RoundTerms {
  Weighting weighting = Weighting::plain;
  double total_weight = 0;                ///< of all ranks; the number of ranks where the window is plain
  double scale = 1;                       ///< what sums are multiplied by
  bool drifted = false;                   ///< parameters differ between ranks
  bool empty = false;                     ///< no rank has run a pass: there is nothing to sum
  bool over = false;                      ///< all there is was left by the window before
  std::optional<std::string> divergence;  ///< why the round's result is no gradient
};

/// Sent when a rank's pass has ended; the bits of the parameters that it used follow.
struct RoundClosing {
  bool abandoned = false;          ///< an exception ended a pass of this rank's window
  bool again = false;              ///< a gradient came after its bucket had left: one more round is needed
  bool may_move = false;           ///< its gradients may change places: nobody holds memory of theirs
  std::array<char, 125> reason{};  ///< zero-terminated
};

RoundTerms judge(std::span<const RoundOpening> openings);

/// What is wrong with a round of which some rank abandoned its part, naming the ranks; nullopt if none did.
std::optional<std::string> judge(std::span<const RoundClosing> closings);

/// Whether some rank needs one more round.
bool needs_another(std::span<const RoundClosing> closings);

/// By rank, seconds that it waited less than the rank that waited longest, in the round before.
std::vector<double> lateness(std::span<const RoundOpening> openings);

/// Whether the gradients of all ranks may change places.
bool may_move(std::span<const RoundClosing> closings);

RoundClosing abandoned_closing(std::string_view reason);

}  // namespace tutti::sync
