// The methods of the reducer that synchronize gradients.
#include <algorithm>
#include <vector>

#include "sync/reducer_impl.h"
#include "tutti/core/error.h"

namespace tutti {

void Reducer::Impl::open_sync() {
  if (window_state_.is(sync::GradientState::aborted)) driver_.abort();
  window_state_.begin_sync(carried_over_gradient());
  const Window& window = window_state_.window();
  communicator_.set_step(window.steps());
  driver_.open({.step = window.steps(),
                .passes = window.passes() + (has_foreign_gradients() || window_state_.zeros_may_differ() ? 1 : 0),
                .weighting = window.weighting(),
                .weight = window.weight(),
                .carried_over = window_state_.began_on_carried_over() ? 1 : 0,
                .only_carried_over = window_state_.is_over() ? 1 : 0,
                .loss_scale = store_.loss_scale(),
                .lengths = window.lengths(),
                .parameters = checker_.combined_hash()});
}

void Reducer::Impl::start_ready_buckets() {
  if (!driver_.is_open()) open_sync();
  const auto waiting = std::ranges::find_if(waiting_, [](int count) { return count > 0; });
  driver_.start_buckets(static_cast<std::size_t>(waiting - waiting_.begin()));
}

void Reducer::Impl::close_sync() {
  if (!driver_.is_open()) open_sync();
  driver_.close(window_state_.reason(), pass_.order);
}

void Reducer::Impl::run_sync() {
  if (driver_.is_refused()) driver_.end();
  if (!driver_.is_open()) open_sync();
  // Gradients that a step has used are equal on all ranks, so the mean does not change them for any weights.
  if (window_state_.is_over()) store_.set_carried_over_weight(window_state_.carried_over_weight());
  const bool has_gradients =
      window_state_.window().passes() > 0 || has_foreign_gradients() || window_state_.zeros_may_differ();
  // If no rank has a gradient there is nothing to sum. A rank with gradients starts its buckets at once.
  if (!has_gradients && or_invalidate([this] { return driver_.is_empty(); })) {
    driver_.close_empty();
  } else {
    close_sync();
  }
  finish_sync();
}

void Reducer::Impl::finish_sync() {
  const sync::SyncResult result = or_invalidate([this] { return driver_.wait(); });
  stats_ += SyncStats{.syncs = 1, .bytes_sent = result.bytes_sent, .seconds_waiting = result.seconds_waited};
  throw_if_failed(result);
  std::vector<WindowLengths> lengths;
  for (const sync::SyncHeader& header : result.headers) lengths.push_back(header.lengths);
  decision_.learn(lengths);
  driver_.apply(result);
  window_state_.end_sync(result.plan.weighting, result.plan.empty, result.plan.only_carried_over);
  stats_ += SyncStats{.straggler_seconds = sync::straggler_times(result.headers)};
  if (any_needs_another_sync(result.trailers)) return run_sync();
  driver_.learn_order(result);
}

void Reducer::Impl::throw_if_failed(const sync::SyncResult& result) {
  if (const auto why = describe_aborts(result.trailers)) {
    std::vector<int> ranks;
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      if (result.trailers[rank].aborted) ranks.push_back(rank);
    }
    invalidate(*why);
    throw PeerError(parameters_.model_prefix() + *why, ranks);
  }
  if (result.plan.mismatch) {
    invalidate(*result.plan.mismatch);
    throw MismatchError(parameters_.model_prefix() + *result.plan.mismatch);
  }
  if (result.plan.parameters_differ) {
    const std::string why = checker_.describe_drift(communicator_);
    invalidate(why);
    throw MismatchError(why);
  }
}

void Reducer::Impl::finish_pending() {
  close_dangling_pass();
  if (!driver_.is_aborted()) return;
  // The program has seen the exception of this rank. The peers are notified here.
  or_invalidate([this] {
    if (sync::owes_abort(driver_.state())) close_sync();
    driver_.wait();
  });
  invalidate("peers were notified");
  discard_window();
}

void Reducer::Impl::invalidate(const std::string& why) {
  window_state_.invalidate(why);
  driver_.end();
}

}  // namespace tutti
