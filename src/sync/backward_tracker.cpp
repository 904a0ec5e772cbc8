#include "sync/backward_tracker.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "tutti/detail/core/call_site_scope.h"

namespace tutti::sync {

namespace {

// The call site of hooks: the program may have started the pass with LibTorch's backward().
constexpr CallSite in_backward{.file = "backward()"};

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

}  // namespace

/// The tracker, or null after its destruction. Autograd owns callbacks, which may outlive the tracker.
struct BackwardTracker::Handle {
  BackwardTracker* tracker = nullptr;
};

/// A callback at the end of a graph task. If it is destroyed without having run, an exception ended the backward pass:
/// LibTorch has no other notification.
///
/// There are three, so that no rank waits before all ranks have sent their headers and buckets; ranks that reach their
/// reducers in different orders would deadlock otherwise. `end` starts what the pass synchronizes, and sends the
/// headers of the parts that join. `headers` waits for the headers of all ranks for such a part. `complete` waits for
/// results, for the parts of a model in the same order on all ranks. LibTorch runs callbacks in the order in which they
/// were queued, so each runs before any of the next kind.
class BackwardTracker::GraphTaskCallback {
 public:
  GraphTaskCallback(std::shared_ptr<Handle> handle, int task, CallbackStage stage)
      : handle_(std::move(handle)), task_(task), stage_(stage) {}
  ~GraphTaskCallback() {
    if (!has_run_ && handle_->tracker != nullptr) fail();
  }
  GraphTaskCallback(const GraphTaskCallback&) = delete;
  GraphTaskCallback& operator=(const GraphTaskCallback&) = delete;

  void run() {
    has_run_ = true;
    BackwardTracker* const tracker = handle_->tracker;
    if (tracker == nullptr) return;
    if (stage_ == CallbackStage::headers) {
      tracker->in_pass([&] { tracker->on_joined_headers(task_); });
      return for_each_part([this](BackwardTracker& part) { part.queue_callback(task_, CallbackStage::complete); });
    }
    if (stage_ == CallbackStage::complete) return tracker->in_pass([&] { tracker->on_complete(task_); });
    try {
      end(*tracker);
    } catch (...) {
      fail();
      throw;
    }
  }

 private:
  void end(BackwardTracker& tracker) const {
    bool pass_has_ended = false;
    std::pair<bool, bool> key;
    tracker.in_pass([&] {
      pass_has_ended = tracker.on_task_end(task_);
      key = tracker.events_.join_key();
    });
    if (!pass_has_ended) return;
    if (tracker.parts_.empty()) return tracker.queue_callback(task_, CallbackStage::complete);
    for_each_part([&](BackwardTracker& part) { part.in_pass([&] { part.join(task_, key); }); });
    tracker.queue_callback(task_, CallbackStage::headers);
  }
  void fail() const noexcept {
    const auto key = handle_->tracker->on_task_error(task_);
    if (stage_ == CallbackStage::end)
      for_each_part([&](BackwardTracker& part) { part.on_other_part_failed(task_, key); });
  }
  /// Without the mutex of this tracker: no thread holds those of two.
  template <typename Action>
  void for_each_part(const Action& action) const {
    for (const auto& part : handle_->tracker->parts_) {
      if (part->tracker != nullptr) action(*part->tracker);
    }
  }

  std::shared_ptr<Handle> handle_;
  int task_;
  CallbackStage stage_;
  bool has_run_ = false;
};

/// A hook on the next node of an outer backward pass after a node that ran a nested pass. Only while such a node is
/// evaluated can a callback for the end of the outer pass be queued.
class BackwardTracker::OuterPassHook : public torch::autograd::FunctionPreHook {
 public:
  OuterPassHook(std::shared_ptr<Handle> handle, std::int64_t pass) : handle_(std::move(handle)), pass_(pass) {}
  /// Sets the pass of the hook. Returns false, and does nothing, for a hook of another tracker.
  bool renew(const Handle* handle, std::int64_t pass) {
    if (handle_.get() != handle) return false;
    pass_ = pass;
    return true;
  }
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    // The node may outlive its pass.
    BackwardTracker* const tracker = handle_->tracker;
    if (tracker == nullptr) return gradients;
    const std::lock_guard lock(tracker->mutex_);
    if (tracker->is_open() && tracker->number_ == pass_) tracker->register_task();
    return gradients;
  }

 private:
  std::shared_ptr<Handle> handle_;
  std::int64_t pass_;
};

template <typename Action>
void BackwardTracker::in_pass(const Action& action) {
  try {
    const std::lock_guard lock(mutex_);
    action();
  } catch (...) {
    if (on_error_) on_error_(std::current_exception());
    throw;
  }
}

template <typename Action>
void BackwardTracker::end_on_error(const Action& action) {
  try {
    action();
  } catch (...) {
    state_ = next_state(state_, PassEvent::end);
    throw;
  }
}

BackwardTracker::BackwardTracker(const std::vector<NamedParameter>& parameters, const BucketPlan& plan,
                                 std::mutex& mutex, BackwardEvents& events,
                                 std::function<void(std::exception_ptr)> on_error)
    : parameters_(parameters),
      plan_(plan),
      mutex_(mutex),
      events_(events),
      on_error_(std::move(on_error)),
      fires_(plan.slots.size()),
      expected_fires_(plan.slots.size(), 1),
      handle_(std::make_shared<Handle>(Handle{this})),
      hooks_(
          tensors_of(parameters), [this](int parameter) { in_pass([&] { require_hooks(parameter); }); },
          [this](int parameter) { in_pass([&] { before_accumulate_grad(parameter); }); },
          [this](int parameter) { in_pass([&] { autograd_hook(parameter); }); }) {}

BackwardTracker::~BackwardTracker() {
  handle_->tracker = nullptr;
}

void BackwardTracker::set_parts(const std::vector<BackwardTracker*>& parts) {
  parts_.clear();
  for (const BackwardTracker* part : parts) parts_.push_back(part->handle_);
}

void BackwardTracker::require_hooks(int parameter) const {
  if (!still_hooked(parameter)) events_.on_hooks_lost(parameter);
}

void BackwardTracker::before_accumulate_grad(int parameter) {
  if (!is_open()) {
    begin_pass();
  } else if (thread_ != std::this_thread::get_id() && !tasks_.contains(torch::autograd::get_current_graph_task_id())) {
    events_.on_concurrent_pass();
  }
  register_task();
  events_.before_accumulate_grad(parameter);
}

void BackwardTracker::autograd_hook(int parameter) {
  const CallSiteScope here(in_backward);
  events_.on_gradient_ready(parameter);
  const auto slot = static_cast<std::size_t>(parameter);
  if (slot >= fires_.size() || ++fires_[slot] != expected_fires_[slot] || state_ != PassState::synchronizing) return;
  order_.push_back(parameter);
  if (--waiting_[plan_.slots[slot].bucket] > 0) return;
  while (ready_ < waiting_.size() && waiting_[ready_] == 0) ++ready_;
  events_.on_buckets_ready(ready_);
}

void BackwardTracker::begin_pass() {
  if (const auto parameter = hooks_.hooked_twice()) events_.on_second_reducer(*parameter);
  tasks_.clear();
  register_task();  // if on_pass_begin() throws, the callback notifies the other parts
  const bool synchronizes = events_.on_pass_begin();
  state_ = next_state(state_, synchronizes ? PassEvent::begin_synchronizing : PassEvent::begin_local);
  ++number_;
  thread_ = std::this_thread::get_id();
  order_.clear();
  std::ranges::fill(fires_, 0);
  waiting_.clear();
  for (const Bucket& bucket : plan_.buckets) waiting_.push_back(static_cast<int>(bucket.parameters.size()));
  ready_ = 0;
}

void BackwardTracker::register_task() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (!tasks_.insert(task).second) return;
  queue_callback(task, CallbackStage::end);
}

void BackwardTracker::queue_callback(int task, CallbackStage stage) {
  torch::autograd::Engine::get_default_engine().queue_callback(
      [callback = std::make_shared<GraphTaskCallback>(handle_, task, stage)] { callback->run(); });
}

// If a whole model is checkpointed, only nested passes reach its parameters. A callback can be queued for the running
// task only, which is the nested one. Hooks on the next nodes of the outer pass register the outer task.
void BackwardTracker::register_outer_task() {
  if (!is_open() || !tasks_.empty()) return;
  for (const torch::autograd::Edge& edge : torch::autograd::get_current_node()->next_edges()) {
    if (!edge.is_valid()) continue;
    // The node of a leaf outlives the pass and may have the hook already.
    const bool known = std::ranges::any_of(edge.function->pre_hooks(), [this](const auto& hook) {
      auto* const outer = dynamic_cast<OuterPassHook*>(hook.get());
      return outer != nullptr && outer->renew(handle_.get(), number_);
    });
    if (!known) edge.function->add_pre_hook(std::make_unique<OuterPassHook>(handle_, number_));
  }
}

bool BackwardTracker::on_task_end(int task) {
  const CallSiteScope here(in_backward);
  if (!is_open()) return false;
  // A nested backward pass ends while a node of the outer one is evaluated; the pass ends with the outermost.
  const bool is_nested = torch::autograd::get_current_node() != nullptr;
  if (!is_nested) {
    flush();
    ended_task_ = task;
  }
  tasks_.erase(task);
  if (is_nested) register_outer_task();
  return !is_nested;
}

void BackwardTracker::join(int task, std::pair<bool, bool> key) {
  // Each part that the pass has reached makes this call, also for the others of these.
  if (ended_task_ == task || is_running() || events_.join_key() != key) return;
  const CallSiteScope here(in_backward);
  if (!is_open()) {
    order_.clear();
    const bool synchronizes = events_.on_join();
    ended_task_ = task;
    if (!synchronizes) return;
    state_ = next_state(state_, PassEvent::join);
    thread_ = std::this_thread::get_id();
  }
  ended_task_ = task;
  tasks_ = {task};
  flush();  // only nested passes have reached an open part
  queue_callback(task, CallbackStage::headers);
}

void BackwardTracker::on_joined_headers(int task) {
  if (state_ != PassState::joined) return;
  const CallSiteScope here(in_backward);
  tasks_.erase(task);
  end_on_error([this] { events_.on_joined_headers(); });
}

void BackwardTracker::on_complete(int task) {
  if (ended_task_ == task) finalize();
}

void BackwardTracker::on_other_part_failed(int task, std::pair<bool, bool> key) noexcept {
  const std::lock_guard lock(mutex_);
  if (is_running() || events_.join_key() != key) return;
  if (is_open()) return fail();  // only nested passes have reached this part
  if (std::exchange(ended_task_, task) != task) events_.on_other_part_failed();
}

std::pair<bool, bool> BackwardTracker::on_task_error(int task) noexcept {
  const std::lock_guard lock(mutex_);
  const bool is_of_pass = tasks_.erase(task) > 0 || ended_task_ == task;
  if (is_of_pass && is_open()) {
    ended_task_ = task;
    fail();
  }
  return events_.join_key();
}

void BackwardTracker::fail_pass() noexcept {
  if (is_open() && !is_running()) fail();
}

void BackwardTracker::fail() noexcept {
  const bool synchronized = state_ != PassState::local;
  state_ = next_state(state_, PassEvent::end);
  events_.on_pass_failed(synchronized);
}

void BackwardTracker::end_pass() {
  flush();
  finalize();
}

void BackwardTracker::flush() {
  if (state_ == PassState::synchronizing) end_on_error([this] { events_.on_all_gradients_ready(); });
}

void BackwardTracker::finalize() {
  if (!is_open()) return;
  const CallSiteScope here(in_backward);
  const PassState ended = std::exchange(state_, next_state(state_, PassEvent::end));
  for (std::size_t i = 0; i < fires_.size(); ++i) {
    if (fires_[i] > 0) expected_fires_[i] = fires_[i];
  }
  events_.finalize_backward(ended);
  order_.clear();
}

}  // namespace tutti::sync
