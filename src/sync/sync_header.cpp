#include "sync/sync_header.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tutti::sync {

namespace {

std::string rank_name(std::size_t rank) {
  return "rank " + std::to_string(rank);
}

/// The first rank whose `field` differs from that of rank 0; nullopt if none.
template <typename Field>
std::optional<std::size_t> first_difference(std::span<const SyncHeader> headers, Field field) {
  for (std::size_t rank = 1; rank < headers.size(); ++rank) {
    if (field(headers[rank]) != field(headers[0])) return rank;
  }
  return std::nullopt;
}

std::optional<std::string> weighting_conflict(std::span<const SyncHeader> headers) {
  const auto find = [&](Weighting weighting) {
    return std::ranges::find(headers, weighting, &SyncHeader::weighting) - headers.begin();
  };
  const auto plain = static_cast<std::size_t>(find(Weighting::plain));
  const auto weighted = static_cast<std::size_t>(find(Weighting::weighted));
  if (plain == headers.size() || weighted == headers.size()) return std::nullopt;
  return rank_name(plain) + " ran its backward passes outside accumulate(), " + rank_name(weighted) +
         " inside: use accumulate() on all ranks or on none";
}

/// Ranks at different loaders choose what they read, so their positions say nothing from then on.
bool batches_may_differ(std::span<const SyncHeader> headers) {
  return std::ranges::any_of(headers, [&](const SyncHeader& header) {
    return header.batch.may_differ || header.batch.loader != headers[0].batch.loader;
  });
}

std::string describe(const BatchPosition& position) {
  const std::string batch = "batch " + std::to_string(position.batch);
  return position.epoch < 0 ? batch : batch + " of epoch " + std::to_string(position.epoch);
}

std::optional<std::string> batch_conflict(std::span<const SyncHeader> headers) {
  if (headers[0].batch.loader < 0) return std::nullopt;
  const auto rank =
      first_difference(headers, [](const SyncHeader& o) { return std::pair(o.batch.epoch, o.batch.batch); });
  if (!rank) return std::nullopt;
  return "rank 0 is at " + describe(headers[0].batch) + " of data loader " + std::to_string(headers[0].batch.loader) +
         ", " + rank_name(*rank) + " at " + describe(headers[*rank].batch) +
         " (all counted from 0): a rank skipped a batch, read one more or left its loop. Skip batches on all ranks or "
         "on none; inside accumulate() a rank may leave out the backward pass of a batch";
}

}  // namespace

SyncPlan make_sync_plan(std::span<const SyncHeader> headers) {
  SyncPlan plan;
  plan.parameters_differ = first_difference(headers, [](const SyncHeader& o) { return o.parameters; }).has_value();
  plan.samples_arrived = std::ranges::min(headers, {}, &SyncHeader::samples_arrived).samples_arrived;
  // Where some ranks are in backward and others in a later call, the program may have changed these in between.
  plan.same_place = !first_difference(headers, [](const SyncHeader& o) { return o.in_pass; });
  if (plan.same_place) {
    plan.compared_only_differ =
        first_difference(headers, [](const SyncHeader& o) { return o.compared_only; }).has_value();
    plan.step_options_differ =
        first_difference(headers, [](const SyncHeader& o) { return o.step_options; }).has_value();
  }
  plan.batches_may_differ = batches_may_differ(headers);

  if (const auto rank = first_difference(headers, [](const SyncHeader& o) { return o.step; })) {
    plan.mismatch =
        "rank 0 is at optimizer step " + std::to_string(headers[0].step) + ", " + rank_name(*rank) + " at step " +
        std::to_string(headers[*rank].step) +
        ": a rank left out a step(), or ranks ran different numbers of synchronizing backward passes between "
        "two steps. Sum the losses of a scope or step for one backward pass, with a loss of weight 0 where a rank has "
        "none, or run all passes of the step under no_sync(): step() then synchronizes once. In accumulate() a rank "
        "may leave out a backward pass, but no step()";
    return plan;
  }
  plan.in_pass = std::ranges::any_of(headers, [](const SyncHeader& header) {
    return header.in_pass != 0 && header.joined == 0 && header.has_gradients != 0;
  });
  plan.unreached = std::ranges::all_of(headers, [](const SyncHeader& header) { return header.joined != 0; });
  plan.empty = plan.unreached ||
               std::ranges::all_of(headers, [](const SyncHeader& header) { return header.has_gradients == 0; });
  plan.only_carried_over =
      std::ranges::all_of(headers, [](const SyncHeader& header) { return header.only_carried_over != 0; });
  if (!plan.empty && !plan.batches_may_differ && (plan.mismatch = batch_conflict(headers))) return plan;
  if ((plan.mismatch = weighting_conflict(headers))) return plan;
  if (const auto rank = first_difference(headers, [](const SyncHeader& o) { return o.loss_scale; })) {
    plan.mismatch = "rank 0 scales its loss by " + std::to_string(headers[0].loss_scale) + ", " + rank_name(*rank) +
                    " by " + std::to_string(headers[*rank].loss_scale) + ": ranks took different steps";
    return plan;
  }

  const auto carried_over = first_difference(headers, [](const SyncHeader& o) { return o.carried_over; });
  if (carried_over && !plan.empty) {
    plan.mismatch = std::string("rank ") + (headers[0].carried_over != 0 ? "0" : std::to_string(*carried_over)) +
                    " accumulated into the gradients of the previous step, which other ranks have cleared: call "
                    "zero_grad() on all ranks or on none";
    return plan;
  }

  plan.weighting = std::ranges::max(headers, {}, &SyncHeader::weighting).weighting;
  if (plan.weighting != Weighting::weighted || plan.empty) {
    plan.total_weight = static_cast<double>(headers.size());
  } else {
    for (const SyncHeader& header : headers) plan.total_weight += header.weight;
    if (!(plan.total_weight > 0) || !std::isfinite(plan.total_weight)) {
      plan.mismatch =
          "the weights of this step's micro-batches add up to " + std::to_string(plan.total_weight) +
          " over all ranks: a mean needs a positive total. If no micro-batch of a step may count (no token in any "
          "of them), give each a small positive weight, such as std::max(tokens, 1e-9)";
      return plan;
    }
  }
  plan.scale = 1.0 / (plan.total_weight * headers[0].loss_scale);
  return plan;
}

std::optional<std::string> describe_aborts(std::span<const SyncTrailer> trailers) {
  std::string message;
  for (std::size_t rank = 0; rank < trailers.size(); ++rank) {
    if (!trailers[rank].aborted) continue;
    if (!message.empty()) message += "; ";
    message += rank_name(rank) + " aborted this step: " + trailers[rank].reason.data();
  }
  if (message.empty()) return std::nullopt;
  return message;
}

bool any_needs_another_sync(std::span<const SyncTrailer> trailers) {
  return std::ranges::any_of(trailers, [](const SyncTrailer& trailer) { return trailer.needs_another_sync; });
}

std::vector<double> straggler_times(std::span<const SyncHeader> headers) {
  const double longest = std::ranges::max(headers, {}, &SyncHeader::seconds_waited).seconds_waited;
  std::vector<double> late;
  for (const SyncHeader& header : headers) late.push_back(longest - header.seconds_waited);
  return late;
}

bool all_can_rebuild_buckets(std::span<const SyncTrailer> trailers) {
  return std::ranges::all_of(trailers, &SyncTrailer::can_rebuild_buckets);
}

SyncTrailer aborted_trailer(std::string_view reason) {
  SyncTrailer trailer{.aborted = true};
  reason.copy(trailer.reason.data(), trailer.reason.size() - 1);
  return trailer;
}

}  // namespace tutti::sync
