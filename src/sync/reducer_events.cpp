// The reducer's events of autograd, and the synchronizations that they and the program start.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>

#include "sync/reducer_impl.h"
#include "sync/reproducible_rules.h"
#include "tutti/core/error.h"

namespace tutti {

template <typename Action>
auto Reducer::Impl::or_invalidate(const Action& action) {
  try {
    return action();
  } catch (const std::exception& error) {
    invalidate(error.what());
    throw;
  }
}

void Reducer::Impl::on_hooks_lost(int parameter) const {
  checker_.check_trained(parameter);  // names the change that it finds
  throw sync::changed_after_prepare(parameters_.trained[parameter], "its node in the graph was replaced");
}

void Reducer::Impl::on_second_reducer(int parameter) const {
  throw UsageError("two objects synchronize the gradient of " + quoted(parameters_.trained[parameter]) +
                   ": a parameter may belong to one DistributedDataParallel or Accelerator at a time. Destroy the "
                   "other one, or call its free_memory()");
}

bool Reducer::Impl::on_pass_begin() {
  if (options_.before_pass) options_.before_pass();
  finish_pending();
  if (is(GradientState::invalid)) discard_window();
  if (at::GradMode::is_enabled()) {
    throw UsageError(parameters_.model_prefix() +
                     "backward does not support create_graph, because a synchronized gradient has no graph: "
                     "use torch::autograd::grad for higher derivatives");
  }
  if (options_.reproducible) require_reproducible_pass(parameters_, window_state_);
  check_gradients_cleared(true, true);
  if (communicator_.size() > 1) checker_.begin_pass(is_pending());
  const auto left = carried_over();
  const bool over = window_state_.is_over();
  parameters_.with_model_prefix([&] { window_state_.begin_pass(left); });
  if (over) {
    // A pass adds to the gradients that a step has used, as in LibTorch. They are equal on all ranks, so the mean does
    // not change them.
    store_.set_carried_over_weight(window_state_.carried_over_weight());
    if (!left) store_.untrack();
  }
  store_.begin_pass(is_pending());
  if (!is_pending()) comparison_.on_clear();
  ++stats_.passes;
  return decision_.begin_pass(window_state_.window().length(), window_state_.scope());
}

bool Reducer::Impl::on_join() {
  finish_pending();
  if (is(GradientState::invalid)) discard_window();
  check_gradients_cleared(true, true);
  if (!count_joined_pass()) return false;
  open_sync(true);
  return true;
}

bool Reducer::Impl::count_joined_pass() {
  window_state_.join_pass();
  const bool synchronizes = decision_.begin_pass(window_state_.window().length(), window_state_.scope());
  if (!synchronizes) window_state_.end_joined_pass();
  return synchronizes;
}

void Reducer::Impl::on_other_part_failed() noexcept {
  // An earlier pass may have aborted the window without a notification of the other ranks.
  if (!is(GradientState::invalid) && !driver_.is_aborted()) on_pass_failed(count_joined_pass());
}

void Reducer::Impl::on_concurrent_pass() {
  throw UsageError(parameters_.model_prefix() +
                   "two backward passes at once over the same parameters: run them one after the other");
}

void Reducer::Impl::on_buckets_ready(std::size_t count) {
  if (!driver_.is_open()) open_sync();
  driver_.start_buckets(count);
}

void Reducer::Impl::finalize_backward(sync::PassState state) {
  const bool synchronized = state != sync::PassState::local;
  if (synchronized) finish_sync();
  if (!synchronized || local_) ++stats_.syncs_skipped;
  window_state_.end_pass(synchronized);
  store_.record(is_pending());
  // A program may freeze parameters for passes that do not reach them: the critic of a GAN, in the generator's pass.
  if (state != sync::PassState::joined) check_plan();
}

void Reducer::Impl::on_pass_failed(bool synchronized) noexcept {
  window_state_.abort("an exception ended its backward pass");
  if (!synchronized) return;
  driver_.abort();
  send_abort();
}

void Reducer::Impl::close_dangling_pass() {
  if (!tracker_.is_open()) return;
  if (tracker_.is_running()) {
    throw UsageError(parameters_.model_prefix() +
                     "called from inside a backward pass over the same parameters: call it after backward()");
  }
  tracker_.end_pass();
}

void Reducer::Impl::open_sync(bool joins) {
  // A pass that does not synchronize may have aborted the window. The other ranks do not wait before this header.
  if (is(GradientState::aborted)) driver_.abort();
  window_state_.begin_sync(carried_over());
  const Window& window = window_state_.window();
  communicator_.set_step(window.steps());
  const bool has_gradients = this->has_gradients();
  sync::SyncHeader header{.step = window.steps(),
                          // An aborted synchronization is not empty, so that all ranks send their buckets.
                          .has_gradients = has_gradients || driver_.is_aborted() ? 1 : 0,
                          .weighting = has_gradients ? window.weighting() : Weighting::undecided,
                          .weight = window.weight(),
                          .carried_over = window_state_.began_on_carried_over() ? 1 : 0,
                          .only_carried_over = window_state_.is_over() ? 1 : 0,
                          .loss_scale = store_.loss_scale(),
                          .lengths = window.lengths(),
                          .in_pass = joins || tracker_.is_running() ? 1 : 0,
                          // All ranks report an abort, so the synchronization is not left out.
                          .joined = joins && window_state_.may_leave_out_sync() && !driver_.is_aborted() ? 1 : 0};
  if (communicator_.size() > 1) {
    header.parameters = checker_.combined_hash();
    comparison_.fill(header);
    for (const sync::DeviceSamples* one : samples()) {
      header.samples_arrived = std::min(header.samples_arrived, one->newest_arrived());
    }
  }
  driver_.open(header);
}

std::vector<sync::DeviceSamples*> Reducer::Impl::samples() {
  std::vector<sync::DeviceSamples*> all{checker_.samples(), comparison_.samples()};
  std::erase(all, nullptr);
  return all;
}

void Reducer::Impl::close_sync() {
  try {
    if (!driver_.is_open()) open_sync();
    // Gradients that a step has used are equal on all ranks, so the mean does not change them for any weights.
    if (window_state_.is_over()) store_.set_carried_over_weight(window_state_.carried_over_weight());
    driver_.close(window_state_.reason(), tracker_.order());
  } catch (const std::exception& error) {
    if (driver_.is_open() && !driver_.is_aborted()) {
      // The other ranks wait for the gradients and the trailer of this rank.
      window_state_.abort(error.what());
      driver_.abort();
      send_abort();
    } else {
      invalidate(error.what());
    }
    throw;
  }
}

void Reducer::Impl::run_sync() {
  if (!driver_.is_open()) open_sync();
  // A rank with gradients starts its buckets at once.
  has_gradients() ? close_sync() : close_sync_or_empty();
  finish_sync();
}

void Reducer::Impl::close_sync_or_empty() {
  if (or_invalidate([this] { return driver_.is_empty(); })) {
    driver_.close_empty();
  } else {
    window_state_.on_headers(driver_.weighting());
    close_sync();
  }
}

void Reducer::Impl::finish_sync() {
  const sync::SyncResult result = or_invalidate([this] { return driver_.wait(); });
  // A local step ends its window without another rank.
  stats_ += SyncStats{.syncs = local_ || result.plan.unreached ? 0 : 1,
                      .bytes_sent = result.bytes_sent,
                      .seconds_waiting = result.seconds_waited};
  if (result.plan.batches_may_differ) comparison_.allow_different_batches();
  throw_if_failed(result);
  if (communicator_.size() > 1) {
    for (sync::DeviceSamples* one : samples()) one->agree(result.plan.samples_arrived);
  }
  if (result.plan.unreached) return window_state_.end_unreached_sync();
  decision_.learn(result.window_lengths());
  driver_.apply(result);
  window_state_.end_sync(result.plan.weighting, result.plan.empty, result.plan.only_carried_over, result.plan.in_pass);
  stats_ += SyncStats{.straggler_seconds = sync::straggler_times(result.headers)};
  if (any_needs_another_sync(result.trailers)) return run_sync();
  driver_.learn_order(result);
  // Here rather than in open_sync(), which may run on a thread of autograd, where other streams are current.
  if (communicator_.size() > 1 && result.plan.same_place) {
    for (sync::DeviceSamples* one : samples()) one->take();
  }
}

void Reducer::Impl::throw_if_failed(const sync::SyncResult& result) {
  if (const auto why = describe_aborts(result.trailers)) {
    invalidate(*why);
    throw PeerError(parameters_.model_prefix() + *why, result.aborted_ranks());
  }
  if (result.plan.mismatch) {
    invalidate(*result.plan.mismatch);
    throw MismatchError(parameters_.model_prefix() + *result.plan.mismatch);
  }
  if (result.plan.parameters_differ || result.plan.compared_only_differ || result.plan.step_options_differ) {
    const bool trained_differ = result.plan.parameters_differ && !result.plan.step_options_differ;
    const std::string why = trained_differ ? checker_.describe_drift(communicator_)
                                           : comparison_.describe_difference(result.plan, communicator_);
    for (sync::DeviceSamples* one : samples()) one->drop();  // taken before the program could correct the difference
    invalidate(why);
    // A difference of parameters names the model itself.
    throw MismatchError((result.plan.step_options_differ ? parameters_.model_prefix() : "") + why);
  }
}

void Reducer::Impl::finish_pending() {
  close_dangling_pass();
  if (!driver_.is_aborted()) return;
  // The program has seen the exception of this rank. The peers are notified here.
  if (owes_abort(driver_.state())) close_sync();
  or_invalidate([this] { driver_.wait(); });
  invalidate("peers were notified");
  discard_window();
}

void Reducer::Impl::abort_scope(const std::string& why) {
  const bool peers_wait = window_state_.sync_due_at_close() || driver_.is_refused();
  if (!peers_wait || is(GradientState::invalid)) return;
  window_state_.abort(why);
  driver_.abort();
  send_abort();
}

void Reducer::Impl::abort_refused_call() {
  if (!driver_.is_refused()) return;
  window_state_.abort(driver_.refusal());
  driver_.abort();
}

void Reducer::Impl::send_abort() noexcept {
  if (!owes_abort(driver_.state())) return;
  try {
    close_sync();
  } catch (const std::exception&) {
    // The gradients are invalid.
  }
}

void Reducer::Impl::invalidate(const std::string& why) {
  window_state_.invalidate(why);
  driver_.end();
}

}  // namespace tutti
