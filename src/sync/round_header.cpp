#include "sync/round_header.h"

#include <algorithm>
#include <cmath>

namespace tutti::sync {

namespace {

std::string rank_name(std::size_t rank) {
  return "rank " + std::to_string(rank);
}

/// The first rank that differs from rank 0 in what `field` reads; nullopt if none.
template <typename Field>
std::optional<std::size_t> first_difference(std::span<const RoundOpening> openings, Field field) {
  for (std::size_t rank = 1; rank < openings.size(); ++rank) {
    if (field(openings[rank]) != field(openings[0])) return rank;
  }
  return std::nullopt;
}

std::optional<std::string> weighting_conflict(std::span<const RoundOpening> openings) {
  const auto find = [&](Weighting weighting) {
    return std::ranges::find(openings, weighting, &RoundOpening::weighting) - openings.begin();
  };
  const auto plain = static_cast<std::size_t>(find(Weighting::plain));
  const auto weighted = static_cast<std::size_t>(find(Weighting::weighted));
  if (plain == openings.size() || weighted == openings.size()) return std::nullopt;
  return rank_name(plain) + " ran its backward passes outside accumulate(), " + rank_name(weighted) +
         " inside: use accumulate() on all ranks or on none";
}

}  // namespace

RoundTerms judge(std::span<const RoundOpening> openings) {
  RoundTerms terms;
  terms.drifted = first_difference(openings, [](const RoundOpening& o) { return o.parameters; }).has_value();

  if (const auto rank = first_difference(openings, [](const RoundOpening& o) { return o.step; })) {
    terms.divergence = "rank 0 is at optimizer step " + std::to_string(openings[0].step) + ", " + rank_name(*rank) +
                       " at step " + std::to_string(openings[*rank].step) +
                       ": ranks ran different numbers of synchronizing backward passes between two steps";
    return terms;
  }
  terms.empty = std::ranges::all_of(openings, [](const RoundOpening& opening) { return opening.passes == 0; });
  terms.over = std::ranges::all_of(openings, [](const RoundOpening& opening) { return opening.over != 0; });
  if ((terms.divergence = weighting_conflict(openings))) return terms;
  if (const auto rank = first_difference(openings, [](const RoundOpening& o) { return o.loss_scale; })) {
    terms.divergence = "rank 0 scales its loss by " + std::to_string(openings[0].loss_scale) + ", " + rank_name(*rank) +
                       " by " + std::to_string(openings[*rank].loss_scale) + ": ranks took different steps";
    return terms;
  }

  const auto kept = first_difference(openings, [](const RoundOpening& o) { return o.kept; });
  if (kept && !terms.empty) {
    terms.divergence = std::string("rank ") + (openings[0].kept != 0 ? "0" : std::to_string(*kept)) +
                       " added to the gradients of the step before, which others have cleared: call zero_grad() on all "
                       "ranks or on none";
    return terms;
  }

  const bool weighted = std::ranges::any_of(
      openings, [](const RoundOpening& opening) { return opening.weighting == Weighting::weighted; });
  if (!weighted || terms.empty) {
    terms.total_weight = static_cast<double>(openings.size());
  } else {
    terms.weighting = Weighting::weighted;
    for (const RoundOpening& opening : openings) terms.total_weight += opening.weight;
    if (!(terms.total_weight > 0) || !std::isfinite(terms.total_weight)) {
      terms.divergence = "the weights of this step's micro-batches add up to " + std::to_string(terms.total_weight) +
                         " over all ranks: a mean needs a positive total";
      return terms;
    }
  }
  terms.scale = 1.0 / (terms.total_weight * openings[0].loss_scale);
  return terms;
}

std::optional<std::string> judge(std::span<const RoundClosing> closings) {
  std::string message;
  for (std::size_t rank = 0; rank < closings.size(); ++rank) {
    if (!closings[rank].abandoned) continue;
    if (!message.empty()) message += "; ";
    message += rank_name(rank) + " abandoned its part of this step: " + closings[rank].reason.data();
  }
  if (message.empty()) return std::nullopt;
  return message;
}

bool needs_another(std::span<const RoundClosing> closings) {
  return std::ranges::any_of(closings, [](const RoundClosing& closing) { return closing.again; });
}

std::vector<double> lateness(std::span<const RoundOpening> openings) {
  const double longest = std::ranges::max(openings, {}, &RoundOpening::waited).waited;
  std::vector<double> late;
  for (const RoundOpening& opening : openings) late.push_back(longest - opening.waited);
  return late;
}

bool may_move(std::span<const RoundClosing> closings) {
  return std::ranges::all_of(closings, &RoundClosing::may_move);
}

RoundClosing abandoned_closing(std::string_view reason) {
  RoundClosing closing{.abandoned = true};
  reason.copy(closing.reason.data(), closing.reason.size() - 1);
  return closing;
}

}  // namespace tutti::sync
