// The methods of the reducer that run inside a backward pass.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "sync/autograd_hooks.h"
#include "sync/reducer_callbacks.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/call_site_scope.h"

namespace tutti {

void Reducer::Impl::before_accumulate_grad(int parameter) {
  const std::lock_guard lock(mutex_);
  if (!pass_.open) {
    begin_pass();
  } else if (pass_.thread != std::this_thread::get_id() &&
             !pass_.tasks.contains(torch::autograd::get_current_graph_task_id())) {
    throw UsageError(parameters_.model_prefix() +
                     "two backward passes at once over the same parameters: run them one after the other");
  }
  register_task();
  driver_.prepare_write(parameter);
}

// The call site of hooks: the program may have started the pass with LibTorch's backward().
constexpr CallSite in_backward{.file = "backward()"};

void Reducer::Impl::on_gradient_ready(int parameter) {
  const CallSiteScope here(in_backward);
  const std::lock_guard lock(mutex_);
  store_.on_gradient(parameter);
  if (parameter >= count() || ++fires_[parameter] != expected_fires_[parameter] || !pass_.synchronizes) return;
  pass_.order.push_back(parameter);
  if (--waiting_[store_.plan().slots[parameter].bucket] == 0) start_ready_buckets();
}

void Reducer::Impl::begin_pass() {
  if (options_.before_pass) options_.before_pass();
  finish_pending();
  if (window_state_.is(sync::GradientState::invalid)) discard_window();
  if (at::GradMode::is_enabled()) {
    throw UsageError(parameters_.model_prefix() +
                     "backward does not support create_graph, because a synchronized gradient has no graph: "
                     "use torch::autograd::grad for higher derivatives");
  }
  if (options_.reproducible && (!window_state_.scope() || window_state_.synced_in_scope())) {
    throw UsageError(parameters_.model_prefix() +
                     (window_state_.scope()
                          ? "a backward pass after this step's gradients were synchronized: a reproducible sum holds "
                            "all passes of a scope, so clip and step after the last one"
                          : "a backward pass outside accumulate(): a reproducible sum adds accumulate() scopes"));
  }
  check_gradients_cleared(true, true);
  begin_window_pass(carried_over_gradient());

  const bool window_is_pending = window_state_.window().pending() > 0;
  store_.begin_pass(window_is_pending);
  checker_.begin_pass(window_is_pending);

  const bool synchronizes = decision_.begin_pass(window_state_.window().passes(), window_state_.scope());
  pass_ = {.open = true,
           .synchronizes = synchronizes,
           .number = stats_.passes,
           .tasks = {},
           .thread = std::this_thread::get_id(),
           .order = {}};
  ++stats_.passes;
  std::ranges::fill(fires_, 0);
  waiting_.clear();
  for (const Bucket& bucket : store_.plan().buckets) waiting_.push_back(static_cast<int>(bucket.parameters.size()));
}

void Reducer::Impl::begin_window_pass(const std::optional<std::string>& carried_over) {
  const bool over = window_state_.is_over();
  with_model_prefix([&] { window_state_.begin_pass(carried_over); });
  if (!over) return;
  // A pass adds to the gradients that a step has used, as in LibTorch. They are equal on all ranks, so the mean does
  // not change them.
  store_.set_carried_over_weight(window_state_.carried_over_weight());
  if (!carried_over) store_.untrack();
}

void Reducer::Impl::register_task() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (!pass_.tasks.insert(task).second) return;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [token = std::make_shared<GraphTaskCallback>(handle_, task)] { token->on_end(); });
}

// If a whole model is checkpointed, only nested passes reach its parameters. A callback can be queued for the running
// task only, which is the nested one. Hooks on the next nodes of the outer pass register the outer task.
void Reducer::Impl::register_outer_task() {
  if (!pass_.open || !pass_.tasks.empty()) return;
  for (const torch::autograd::Edge& edge : torch::autograd::get_current_node()->next_edges()) {
    if (!edge.is_valid()) continue;
    // The node of a leaf outlives the pass and may have the hook already.
    const bool known = std::ranges::any_of(edge.function->pre_hooks(), [this](const auto& hook) {
      auto* const outer = dynamic_cast<OuterPassHook*>(hook.get());
      return outer != nullptr && outer->renew(handle_.get(), pass_.number);
    });
    if (!known) edge.function->add_pre_hook(std::make_unique<OuterPassHook>(handle_, pass_.number));
  }
}

void Reducer::Impl::on_task_end(int task) {
  const CallSiteScope here(in_backward);
  const std::lock_guard lock(mutex_);
  if (!pass_.open) return;
  pass_.tasks.erase(task);
  // A nested backward pass ends while a node of the outer one is evaluated; the pass ends with the outermost.
  if (torch::autograd::get_current_node()) return register_outer_task();
  flush_pass();
  // Other reducers of this pass must be flushed before this one waits: two ranks that reach their reducers in different
  // orders would deadlock otherwise. The callbacks of the other reducers run before this one.
  torch::autograd::Engine::get_default_engine().queue_callback(
      [token = std::make_shared<GraphTaskCallback>(handle_, task)] { token->on_complete(); });
}

void Reducer::Impl::on_task_error(int task) noexcept {
  const std::lock_guard lock(mutex_);
  pass_.tasks.erase(task);
  if (!pass_.open) return;
  pass_.open = false;
  window_state_.abort("an exception ended its backward pass");
  if (pass_.synchronizes) driver_.abort();
}

void Reducer::Impl::flush_pass() {
  if (!pass_.synchronizes) return;
  try {
    close_sync();
  } catch (const std::exception& error) {
    pass_.open = false;
    invalidate(error.what());
    throw;
  }
}

void Reducer::Impl::finalize_backward() {
  if (!pass_.open) return;
  const CallSiteScope here(in_backward);
  pass_.open = false;
  if (pass_.synchronizes) {
    finish_sync();
    pass_.order.clear();
  } else {
    ++stats_.syncs_skipped;
  }
  window_state_.end_pass(pass_.synchronizes);
  for (std::size_t i = 0; i < fires_.size(); ++i) {
    if (fires_[i] > 0) expected_fires_[i] = fires_[i];
  }
  store_.record(window_state_.window().pending() > 0);
  check_plan();
}

// Ends an open pass, reached by nested passes only, after an exception: no callback reports its end.
void Reducer::Impl::abort_dangling_pass() {
  if (!pass_.open || !pass_.tasks.empty()) return;
  pass_.open = false;
  window_state_.abort("an exception ended its backward pass");
  if (pass_.synchronizes) driver_.abort();
}

void Reducer::Impl::close_dangling_pass() {
  if (!pass_.open) return;
  if (!pass_.tasks.empty()) {
    throw UsageError(parameters_.model_prefix() +
                     "called from inside a backward pass over the same parameters: call it after backward()");
  }
  // Only nested backward passes reached the parameters, so no callback reported the end of the outer pass.
  flush_pass();
  finalize_backward();
}

}  // namespace tutti
