// The reducer's part that runs inside a backward pass.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "sync/autograd_hooks.h"
#include "sync/gradient_buffer.h"
#include "sync/parameter_watch.h"
#include "sync/reducer_self.h"
#include "sync/round.h"
#include "sync/sparse_gradients.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/called_from.h"

namespace tutti {

void Reducer::Impl::before_accumulate(int parameter) {
  const std::lock_guard lock(mutex_);
  if (!pass_.open) {
    begin_pass();
  } else if (pass_.thread != std::this_thread::get_id() &&
             !pass_.tasks.contains(torch::autograd::get_current_graph_task_id())) {
    throw UsageError(whose() + "two backward passes at once over the same parameters: run them one after the other");
  }
  register_task();
  if (parameter >= count()) return sparse_->make_share(parameter - count(), share());

  const int index = buffer_->plan().slots[parameter].bucket;
  BucketState& bucket = buckets_[index];
  if (round_ && static_cast<std::size_t>(index) < round_->buckets_started()) {
    if (bucket.late) return;
    round_->wait_for_bucket(index);
    make_share(index, round_->terms().total_weight);
    bucket.late = true;
  } else if (bucket.averaged) {
    make_share(index, last_total_weight_);
    bucket.averaged = false;
  }
}

// The engine calls, in a pass that the program may have begun without us.
constexpr CallSite in_backward{.file = "backward()"};

void Reducer::Impl::after_accumulate(int parameter) {
  const CalledFrom here(in_backward);
  const std::lock_guard lock(mutex_);
  if (parameter >= count()) return sparse_->arrived(parameter - count());
  ParameterState& state = states_[parameter];
  adopt(parameter);
  state.attached = buffer_->attached(parameter);
  if (++state.fires != state.expected_fires || !pass_.synchronizes) return;
  if (learns_order()) pass_.order.push_back(parameter);
  if (--buckets_[buffer_->plan().slots[parameter].bucket].waiting == 0) start_ready_buckets();
}

void Reducer::Impl::begin_pass() {
  if (options_.before_pass) options_.before_pass();
  settle();
  if (life_.is(sync::Gradients::lost)) forget_window();
  if (at::GradMode::is_enabled()) {
    throw UsageError(
        whose() +
        "backward with create_graph keeps the gradient's own graph, which a synchronized gradient has not: "
        "use torch::autograd::grad for higher derivatives");
  }
  if (options_.reproducible && (!life_.scope() || life_.round_in_scope())) {
    throw UsageError(whose() +
                     (life_.scope()
                          ? "a backward pass after this step's gradients were synchronized: a reproducible sum holds "
                            "all passes of a scope, so clip and step after the last one"
                          : "a backward pass outside accumulate(): a reproducible sum is over accumulate() scopes"));
  }
  notice_vanished(true, true);
  begin_on(kept_gradient());

  const bool window_is_pending = life_.window().pending() > 0;
  // What the user put in place of a synchronized gradient is one; with pending passes it would be a change by hand.
  for (int i = 0; i < count(); ++i) {
    if (!window_is_pending && states_[i].attached && !buffer_->attached(i)) {
      adopt(i);
      states_[i].attached = buffer_->attached(i);  // not where it was cleared
    }
    if (!buffer_->attached(i)) buffer_->release(i);
  }
  if (!window_is_pending) sparse_->forget_cleared();
  if (options_.check_replicas) {
    auto now = watch_->hashes();
    if (window_is_pending) check_parameters_unchanged(now);
    hashes_ = std::move(now);
  }

  const bool asked = synchronizes({.policy = options_.policy,
                                   .pass = life_.window().passes(),
                                   .triggered = std::exchange(triggered_, false),
                                   .no_sync = no_sync_depth_ > 0,
                                   .annotated = annotated_,
                                   .in_accumulate = life_.scope().has_value(),
                                   .accumulate_syncs = life_.scope() && life_.scope()->syncs,
                                   .sync_each_batch = life_.scope() && life_.scope()->sync_each_batch},
                                  automatic_);
  pass_ = {.open = true,
           .synchronizes = asked && !options_.reproducible,
           .number = stats_.passes,
           .tasks = {},
           .thread = std::this_thread::get_id(),
           .order = {}};
  ++stats_.passes;
  for (ParameterState& state : states_) state.fires = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    buckets_[i].waiting = static_cast<int>(buffer_->plan().buckets[i].parameters.size());
  }
}

/// The name of a parameter whose gradient is there still from a window that is over; nullopt if none.
std::optional<std::string> Reducer::Impl::kept_gradient() const {
  if (!life_.over()) return std::nullopt;
  for (int i = 0; i < count(); ++i) {
    // Also where the user put a tensor of his own in its place.
    if (states_[i].attached && parameters_[i].tensor.grad().defined()) return quoted(parameters_[i]);
  }
  return sparse_->left();
}

void Reducer::Impl::begin_on(const std::optional<std::string>& kept) {
  const bool over = life_.over();
  named([&] { life_.begin_pass(kept); });
  if (!over) return;
  // A pass adds to the gradients that a step has used, as in LibTorch: they are equal on all ranks, so their mean is
  // what they are.
  last_total_weight_ = channel_.size() * life_.weight_of_kept();
  if (kept) return;
  sparse_->forget();
  for (BucketState& bucket : buckets_) bucket.averaged = false;
  for (ParameterState& state : states_) state.attached = false;
}

void Reducer::Impl::register_task() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (!pass_.tasks.insert(task).second) return;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [token = std::make_shared<PassToken>(self_, task)] { token->ended(); });
}

// Only nested passes come to our parameters where all of a model is checkpointed. A callback can be given to the task
// under way alone, and that is the nested one: the outer one is met at the nodes that it evaluates next.
void Reducer::Impl::register_outer_task() {
  if (!pass_.open || !pass_.tasks.empty()) return;
  for (const torch::autograd::Edge& edge : torch::autograd::get_current_node()->next_edges()) {
    if (!edge.is_valid()) continue;
    // A node that lasts, of a leaf, has the hook already.
    const bool known = std::ranges::any_of(edge.function->pre_hooks(), [this](const auto& hook) {
      auto* const outer = dynamic_cast<OuterHook*>(hook.get());
      return outer != nullptr && outer->renew(self_.get(), pass_.number);
    });
    if (!known) edge.function->add_pre_hook(std::make_unique<OuterHook>(self_, pass_.number));
  }
}

void Reducer::Impl::task_ended(int task) {
  const CalledFrom here(in_backward);
  const std::lock_guard lock(mutex_);
  if (!pass_.open) return;
  pass_.tasks.erase(task);
  // A nested backward pass ends while a node of the outer one is evaluated; the pass ends with the outermost.
  if (torch::autograd::get_current_node()) return register_outer_task();
  flush_pass();
  // Other reducers of this pass must be flushed before this one waits, or two ranks that meet their reducers in another
  // order would wait for each other: their callbacks stand before this one.
  torch::autograd::Engine::get_default_engine().queue_callback(
      [token = std::make_shared<PassToken>(self_, task)] { token->completed(); });
}

void Reducer::Impl::task_died(int task) noexcept {
  const std::lock_guard lock(mutex_);
  pass_.tasks.erase(task);
  if (!pass_.open) return;
  pass_.open = false;
  life_.abandon("an exception ended its backward pass");
  owes_round_ = pass_.synchronizes;
}

void Reducer::Impl::flush_pass() {
  if (!pass_.synchronizes) return;
  try {
    start_all_buckets_and_close();
  } catch (const std::exception& error) {
    pass_.open = false;
    lose(error.what());
    throw;
  }
}

void Reducer::Impl::complete_pass() {
  if (!pass_.open) return;
  const CalledFrom here(in_backward);
  pass_.open = false;
  if (pass_.synchronizes) {
    finish_round();
    pass_.order.clear();
  } else {
    ++stats_.rounds_avoided;
  }
  life_.end_pass(pass_.synchronizes);
  for (int i = 0; i < count(); ++i) {
    ParameterState& state = states_[i];
    if (state.fires > 0) state.expected_fires = state.fires;
    if (state.attached) state.version = buffer_->slot(i)._version();
  }
  watch_pending();
  check_plan();
}

// An exception leaves a backward pass behind that only nested passes brought here: nothing else tells that it is over.
void Reducer::Impl::abandon_dangling_pass() {
  if (!pass_.open || !pass_.tasks.empty()) return;
  pass_.open = false;
  life_.abandon("an exception ended its backward pass");
  owes_round_ = pass_.synchronizes;
}

void Reducer::Impl::close_dangling_pass() {
  if (!pass_.open) return;
  if (!pass_.tasks.empty()) {
    throw UsageError(whose() + "called from inside a backward pass over the same parameters: call it after backward()");
  }
  // Only nested backward passes reached our parameters, so nothing told when the outer one ended.
  flush_pass();
  complete_pass();
}

}  // namespace tutti
