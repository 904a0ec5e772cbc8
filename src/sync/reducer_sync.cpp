// The methods of the reducer that synchronize gradients.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "sync/gradient_sync.h"
#include "sync/reducer_impl.h"
#include "tutti/core/error.h"

namespace tutti {

void Reducer::Impl::open_sync() {
  // Must precede the construction of GradientSync, which holds buckets.
  can_rebuild_buckets_ = is_learning_order() && store_.can_rebuild_buckets();
  window_state_.begin_sync(carried_over_gradient());
  const Window& window = window_state_.window();
  communicator_.set_step(window.steps());
  gradient_sync_ = std::make_unique<sync::GradientSync>(
      communicator_,
      sync::SyncHeader{
          .step = window.steps(),
          .passes = window.passes() + (has_foreign_gradients() || window_state_.zeros_may_differ() ? 1 : 0),
          .weighting = window.weighting(),
          .weight = window.weight(),
          .carried_over = window_state_.began_on_carried_over() ? 1 : 0,
          .only_carried_over = window_state_.is_over() ? 1 : 0,
          .loss_scale = store_.loss_scale(),
          .lengths = window.lengths(),
          .parameters = checker_.combined_hash(),
          .seconds_waited = last_wait_seconds_},
      options_.detect_overflow);
}

void Reducer::Impl::start_ready_buckets() {
  if (!gradient_sync_) open_sync();
  for (std::size_t next = gradient_sync_->buckets_started(); next < waiting_.size() && waiting_[next] == 0;
       next = gradient_sync_->buckets_started()) {
    start_bucket_all_reduce(next);
  }
}

void Reducer::Impl::start_bucket_all_reduce(std::size_t bucket) {
  // The sums of an aborted synchronization are discarded, and invalid gradients may be the reason of the abort.
  const at::Tensor& tensor = window_state_.is(sync::GradientState::aborted) ? store_.discard_bucket(bucket)
                                                                            : store_.fill_bucket(bucket);
  gradient_sync_->start_bucket_all_reduce(tensor, options_.gradient_codec);
}

void Reducer::Impl::start_all_buckets_and_close() {
  if (!gradient_sync_) open_sync();
  const bool aborted = window_state_.is(sync::GradientState::aborted);
  for (std::size_t bucket = gradient_sync_->buckets_started(); bucket < store_.bucket_count(); ++bucket) {
    start_bucket_all_reduce(bucket);
  }
  for (int i = 0; i < store_.sparse_count(); ++i) {
    gradient_sync_->start_rows(aborted ? at::Tensor() : store_.fill_rows(i), store_.sparse_parameter(i));
  }
  const std::vector<bool> used = store_.take_used();
  sync::SyncTrailer trailer = aborted ? sync::aborted_trailer(window_state_.reason()) : sync::SyncTrailer{};
  trailer.needs_another_sync = store_.any_written_in_flight();
  if (!is_learning_order()) return gradient_sync_->close(trailer, used);
  // The order is sent with the trailer, not in a separate collective: ranks reach their reducers in different orders,
  // so a collective here could wait for a rank that waits for this rank in another reducer.
  trailer.can_rebuild_buckets = can_rebuild_buckets_;
  std::vector<int> order = pass_.order;
  order.resize(count(), -1);
  gradient_sync_->close(trailer, used, order);
}

void Reducer::Impl::run_sync() {
  refusal_.reset();
  if (!gradient_sync_) open_sync();
  // Gradients that a step has used are equal on all ranks, so the mean does not change them for any weights.
  if (window_state_.is_over()) store_.set_carried_over_weight(window_state_.carried_over_weight());
  if (window_state_.window().passes() == 0 && !has_foreign_gradients() && !window_state_.zeros_may_differ()) {
    // If no rank has a gradient there is nothing to sum. A rank with gradients starts its buckets at once.
    try {
      gradient_sync_->wait_for_headers();
    } catch (const std::exception& error) {
      invalidate(error.what());
      throw;
    }
    if (gradient_sync_->plan().empty) {
      gradient_sync_->close({}, std::vector<bool>(count()));
      finish_sync();
      return;
    }
  }
  if (!gradient_sync_->closed()) start_all_buckets_and_close();
  finish_sync();
}

void Reducer::Impl::finish_sync() {
  const auto start = std::chrono::steady_clock::now();
  try {
    gradient_sync_->wait();
  } catch (const std::exception& error) {
    invalidate(error.what());
    throw;
  }
  last_wait_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  stats_.seconds_waiting += last_wait_seconds_;
  ++stats_.syncs;
  stats_.bytes_sent += gradient_sync_->bytes_sent();
  apply_sync();
}

void Reducer::Impl::apply_sync() {
  const std::unique_ptr<sync::GradientSync> gradient_sync = std::move(gradient_sync_);
  const sync::SyncPlan& plan = gradient_sync->plan();
  if (const auto why = describe_aborts(gradient_sync->trailers())) {
    std::vector<int> ranks;
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      if (gradient_sync->trailers()[rank].aborted) ranks.push_back(rank);
    }
    invalidate(*why);
    throw PeerError(parameters_.model_prefix() + *why, ranks);
  }
  if (plan.mismatch) {
    invalidate(*plan.mismatch);
    throw MismatchError(parameters_.model_prefix() + *plan.mismatch);
  }
  if (plan.parameters_differ) {
    const std::string why = checker_.describe_drift(communicator_);
    invalidate(why);
    throw MismatchError(why);
  }

  std::vector<WindowLengths> lengths;
  for (const sync::SyncHeader& header : gradient_sync->headers()) lengths.push_back(header.lengths);
  decision_.learn(lengths);
  overflowed_ = gradient_sync->overflowed();
  store_.set_mean(plan.total_weight, gradient_sync->buckets_started(), gradient_sync->used_by_any_rank(),
                  gradient_sync->rows());
  window_state_.end_sync(plan.weighting, plan.empty, plan.only_carried_over);
  stats_ += SyncStats{.straggler_seconds = sync::straggler_times(gradient_sync->headers())};
  if (any_needs_another_sync(gradient_sync->trailers())) return run_sync();
  if (!plan.empty && is_learning_order()) rebuild_buckets(*gradient_sync);
}

// A single rank, also during local steps, has no communication to overlap.
bool Reducer::Impl::is_learning_order() const {
  return syncs_left_to_learn_order_ > 0 && communicator_.size() > 1;
}

// Every rank calls it after the same synchronizations with the same trailers. A synchronization in step() has no order.
void Reducer::Impl::rebuild_buckets(const sync::GradientSync& gradient_sync) {
  --syncs_left_to_learn_order_;
  const std::span<const int> order = gradient_sync.numbers_of_rank_0();
  const bool ordered = std::ranges::any_of(order, [](int parameter) { return parameter >= 0; });
  if (!ordered || !sync::all_can_rebuild_buckets(gradient_sync.trailers())) return;
  syncs_left_to_learn_order_ = 0;
  store_.rebuild_buckets(options_.buckets, order);
}

void Reducer::Impl::finish_pending() {
  close_dangling_pass();
  if (!window_state_.is(sync::GradientState::aborted) || !owes_close_) return;
  // The program has seen the exception of this rank. The peers are notified here.
  try {
    if (!gradient_sync_ || !gradient_sync_->closed()) start_all_buckets_and_close();
    gradient_sync_->wait();
  } catch (const std::exception& error) {
    invalidate(error.what());
    throw;
  }
  invalidate("peers were notified");
  discard_window();
}

void Reducer::Impl::invalidate(const std::string& why) {
  window_state_.invalidate(why);
  gradient_sync_.reset();
  owes_close_ = false;
  store_.abandon_sync();
}

}  // namespace tutti
