#pragma once
// Follows the backward passes over one reducer's parameters, from the hooks and callbacks of autograd: when a pass
// begins, which gradients and buckets are ready, and how the pass ends.
//
// The reducer's mutex protects the tracker. Hooks and callbacks run on threads of autograd and lock it. All other
// methods must be called with it locked, and so are the reducer's BackwardEvents.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "sync/autograd_hooks.h"
#include "sync/bucket_plan.h"
#include "sync/pass_state.h"
#include "tutti/detail/sync/named_parameter.h"

namespace tutti::sync {

/// What a tracker reports. Exceptions leave backward().
class BackwardEvents {
 public:
  /// A parameter that has lost its hooks gets a gradient. Must throw.
  virtual void on_hooks_lost(int parameter) const = 0;
  /// Another reducer that exists synchronizes the parameter too. Must throw.
  virtual void on_second_reducer(int parameter) const = 0;
  /// The first gradient of a pass is about to be added. Returns whether the pass synchronizes. If it throws, the pass
  /// has not begun; in a model with several parts, on_other_part_failed() is called for each of them, this one
  /// included.
  virtual bool on_pass_begin() = 0;
  /// Another backward pass runs at the same time. Must throw.
  virtual void on_concurrent_pass() = 0;
  /// Autograd is about to add to the gradient of `parameter`.
  virtual void before_accumulate_grad(int parameter) = 0;
  /// Autograd has added to the gradient of `parameter`.
  virtual void on_gradient_ready(int parameter) = 0;
  /// A bucket is ready in a pass that synchronizes: all gradients of buckets 0 to `count` - 1 are complete.
  virtual void on_buckets_ready(std::size_t count) = 0;
  /// A pass that synchronizes has no further gradients.
  virtual void on_all_gradients_ready() = 0;
  /// The pass has ended, after `state`. Every reducer of the pass has had on_all_gradients_ready().
  virtual void finalize_backward(PassState state) = 0;
  /// An exception has ended the pass.
  virtual void on_pass_failed(bool synchronized) noexcept = 0;
  /// Whether an accumulate() scope is open, and whether steps are local. Parts join the passes over each other only
  /// while the values of both are equal.
  virtual std::pair<bool, bool> join_key() const = 0;
  /// A pass has reached other parts of the model only. Returns whether these parameters take part in its
  /// synchronization. Must not wait for other ranks.
  virtual bool on_join() = 0;
  /// The same pass: every part of the model has sent its header. finalize_backward() follows.
  virtual void on_joined_headers() = 0;
  /// An exception has ended a pass that has reached other parts of the model only.
  virtual void on_other_part_failed() noexcept = 0;

 protected:
  ~BackwardEvents() = default;
};

class BackwardTracker {
 public:
  /// Installs the hooks. `parameters` are numbered as in the events; those in `plan` come first. `on_error` may be
  /// null: it is called, without the mutex, with an exception that is about to leave a hook or callback, and may throw
  /// another one. The referenced arguments must outlive the tracker.
  BackwardTracker(const std::vector<NamedParameter>& parameters, const BucketPlan& plan, std::mutex& mutex,
                  BackwardEvents& events, std::function<void(std::exception_ptr)> on_error);
  /// Detaches the hooks and callbacks.
  ~BackwardTracker();
  BackwardTracker(const BackwardTracker&) = delete;
  BackwardTracker& operator=(const BackwardTracker&) = delete;

  /// Sets the trackers of all parts of the model, in the same order on all ranks: those whose parameters a pass over
  /// this one's may reach too. Where it does not, they join the pass.
  void set_parts(const std::vector<BackwardTracker*>& parts);
  bool is_open() const { return state_ != PassState::none; }
  /// Whether autograd still runs the open pass. False for an open pass that only nested passes reached: no callback
  /// reports its end.
  bool is_running() const { return is_open() && !tasks_.empty(); }
  /// Ends an open pass that is not running.
  void end_pass();
  /// The same after an exception. Does nothing to a pass that is running, because its callback reports the exception.
  void fail_pass() noexcept;
  /// Parameters in the order of their gradients in this pass, if it synchronizes.
  const std::vector<int>& order() const { return order_; }
  /// Whether the parameter still has its hooks.
  bool still_hooked(int parameter) const { return hooks_.still_hooked(parameter); }

 private:
  struct Handle;
  class GraphTaskCallback;
  enum class CallbackStage { end, headers, complete };
  class OuterPassHook;

  /// Runs an action of a hook or callback with the mutex locked.
  template <typename Action>
  void in_pass(const Action& action);
  /// Runs an action. An exception ends the pass.
  template <typename Action>
  void end_on_error(const Action& action);
  void require_hooks(int parameter) const;
  void before_accumulate_grad(int parameter);
  void autograd_hook(int parameter);
  void begin_pass();
  void register_task();
  void register_outer_task();
  /// Returns whether the pass has ended.
  bool on_task_end(int task);
  /// Returns the key of the parts that join.
  std::pair<bool, bool> on_task_error(int task) noexcept;
  /// A pass over other parts of the model has ended.
  void join(int task, std::pair<bool, bool> key);
  void on_other_part_failed(int task, std::pair<bool, bool> key) noexcept;
  void on_joined_headers(int task);
  void on_complete(int task);
  void queue_callback(int task, CallbackStage stage);
  void fail() noexcept;
  void flush();
  void finalize();

  const std::vector<NamedParameter>& parameters_;
  const BucketPlan& plan_;
  std::mutex& mutex_;
  BackwardEvents& events_;
  std::function<void(std::exception_ptr)> on_error_;

  PassState state_ = PassState::none;
  std::int64_t number_ = 0;  // of the pass
  std::thread::id thread_;
  int ended_task_ = -1;     // the last graph task whose end ended this pass, or a pass over other parts of the model
  std::set<int> tasks_;     // graph tasks that have not ended; a nested backward pass has its own task
  std::vector<int> fires_;  // by slot: calls of the parameter's hook in this pass
  std::vector<int> expected_fires_;  // in the previous pass: more than one with reentrant checkpointing
  std::vector<int> waiting_;         // by bucket: gradients that are not ready
  std::size_t ready_ = 0;            // the buckets before this one are ready
  std::vector<int> order_;

  std::shared_ptr<Handle> handle_;
  std::vector<std::shared_ptr<Handle>> parts_;  // of the model, with this one
  AutogradHooks hooks_;                         // last member, so that hooks are detached first
};

}  // namespace tutti::sync
