#pragma once
// What an Accelerator offers besides training: collectives over its ranks, and who does what. Names are Hugging Face
// Accelerate's; docs/collectives.md has a table.
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/detail/core/call_site_scope.h"
#include "tutti/detail/train/prepare_traits.h"
#include "tutti/sync/all_gather_with_grad.h"
#include "tutti/train/collectives.h"
#include "tutti/train/find_executable_batch_size.h"
#include "tutti/train/main_process_first.h"
#include "tutti/train/split_between_processes.h"

namespace tutti {

/// What set_seed() is told besides the seed.
struct SeedOptions {
  /// Each rank gets a seed of its own: seed + rank.
  bool device_specific = false;
  /// Only deterministic algorithms: those that have none throw.
  bool deterministic = false;
};

/// Seeds LibTorch's generators, of the CPU and of all devices.
void set_seed(std::uint64_t seed, bool deterministic = false);

/// The base of Accelerator. gather() to broadcast_object_list(), check_trigger(), find_executable_batch_size() and the
/// two ..._first() scopes are for all ranks: every rank must call them, in the same order. What collectives.h says of
/// shapes, dtypes and errors holds here.
template <typename Accelerator>
class AcceleratorHelpers {
 public:
  // Collectives: see collectives.h. Every rank must call them, in the same order.

  /// Every rank's tensors, one after the other by rank along dimension 0: [n, k] on 4 ranks become [4 n, k] on all of
  /// them. Shapes must be equal; pad_across_processes() makes them so. A tensor without dimensions counts as one row.
  template <Nested T>
  [[nodiscard]] T gather(const T& value, const CallOptions& call = {}) const {
    return tutti::gather(communicator(), value, call);
  }
  /// gather() of one tensor inside the graph: for a loss over what all ranks computed. See all_gather_with_grad.h, also
  /// for the loss's scale: none is needed. On a channel of its own, made by the first call.
  [[nodiscard]] at::Tensor all_gather_with_grad(const at::Tensor& tensor, const CallOptions& call = {}) {
    if (!all_gather_with_grad_) all_gather_with_grad_.emplace(communicator());
    return (*all_gather_with_grad_)(tensor, call);
  }
  /// gather() without the samples that the loader repeated, so that a metric counts each sample once. To be called in
  /// the body of a loop over one of this Accelerator's loaders; the innermost loop counts.
  template <typename T>
  [[nodiscard]] T gather_for_metrics(const T& value, const CallOptions& call = {}) const {
    const auto position = self().loop_position();
    return tutti::gather_for_metrics(communicator(), value, position ? &*position : nullptr, call);
  }
  /// Every rank's tensors combined element by element, times `scale`. Shapes must be equal.
  template <Nested T>
  [[nodiscard]] T reduce(const T& value, ReduceOp reduction = ReduceOp::sum, double scale = 1.0,
                         const CallOptions& call = {}) const {
    return tutti::reduce(self().communicator(), value, reduction, scale, call);
  }
  /// Tensors as long as the longest one of all ranks along `options.dim`.
  template <Nested T>
  [[nodiscard]] T pad_across_processes(const T& value, const PadOptions& options = {},
                                       const CallOptions& call = {}) const {
    return tutti::pad_across_processes(communicator(), value, options, call);
  }
  /// The tensors of rank `from_process`, on all ranks. Shapes must be equal.
  template <Nested T>
  [[nodiscard]] T broadcast(const T& value, int from_process = 0, const CallOptions& call = {}) const {
    return tutti::broadcast(communicator(), value, from_process, call);
  }
  /// The objects of all ranks, rank 0's first. Lengths may differ.
  template <Packable T>
  [[nodiscard]] std::vector<T> gather_object(const std::vector<T>& objects, const CallOptions& call = {}) const {
    return tutti::gather_object(communicator(), objects, call);
  }
  /// The object of rank `from_process`.
  template <Packable T>
  [[nodiscard]] T broadcast_object(const T& object, int from_process = 0, const CallOptions& call = {}) const {
    return tutti::broadcast_object(communicator(), object, from_process, call);
  }
  /// `objects` become those of rank `from_process`.
  template <Packable T>
  void broadcast_object_list(std::vector<T>& objects, int from_process = 0, const CallOptions& call = {}) const {
    objects = tutti::broadcast_object(communicator(), objects, from_process, call);
  }

  /// check_trigger() will return true on all ranks. Not a collective: for a condition that one rank sees, such as a
  /// metric that has become bad.
  void set_trigger() { triggered_ = true; }
  /// Whether any rank has called set_trigger() since the last check; resets it.
  [[nodiscard]] bool check_trigger(const CallSite& where = CallSite::here()) {
    const at::Tensor any = at::scalar_tensor(triggered_ ? 1 : 0, at::kInt);
    communicator().all_reduce(any, ReduceOp::max, {.name = "check_trigger", .where = where}).wait();
    triggered_ = false;
    return any.template item<int>() != 0;
  }

  /// `const auto scope = accelerator.main_process_first();`: its body runs on the main process, and then on the others.
  /// See FirstProcessScope for failures. `call.timeout`: how long the others wait.
  FirstProcessScope main_process_first(const CallOptions& call = {}) const {
    return FirstProcessScope(communicator(), self().is_main_process(), "main_process_first", call);
  }
  /// The same with the first rank of each node.
  FirstProcessScope local_main_process_first(const CallOptions& call = {}) const {
    return FirstProcessScope(communicator(), self().is_local_main_process(), "local_main_process_first", call);
  }

  // Not collectives. A function that returns something gives an optional, empty on the other ranks.

  /// Calls `function` on rank 0 only.
  template <std::invocable Function>
  auto on_main_process(Function&& function) const {
    return call_if(self().is_main_process(), function);
  }
  /// Calls `function` on the first rank of each node.
  template <std::invocable Function>
  auto on_local_main_process(Function&& function) const {
    return call_if(self().is_local_main_process(), function);
  }
  /// Calls `function` on the rank with the highest number.
  template <std::invocable Function>
  auto on_last_process(Function&& function) const {
    return call_if(self().is_last_process(), function);
  }
  /// Calls `function` on the rank with this number only. UsageError where there is none.
  template <std::invocable Function>
  auto on_process(int process_index, Function&& function) const {
    require_process("on_process", process_index, communicator().size());
    return call_if(self().process_index() == process_index, function);
  }
  /// Calls `function` on the rank with this number on each node. UsageError where there is none.
  template <std::invocable Function>
  auto on_local_process(int local_process_index, Function&& function) const {
    require_process("on_local_process", local_process_index, communicator().size());
    return call_if(self().local_process_index() == local_process_index, function);
  }

  /// This rank's share of what all ranks have; see split_between_processes.h.
  template <Splittable T>
  [[nodiscard]] T split_between_processes(const T& inputs, bool apply_padding = false) const {
    return tutti::split_between_processes(inputs, self().process_index(), self().num_processes(), apply_padding);
  }

  /// Calls `body` with smaller and smaller batches until it fits into memory: see find_executable_batch_size.h. After
  /// an attempt that failed, free_memory() lets go what it prepared with this Accelerator; ranks that wait for one
  /// another in backward() or in a loop over a stream learn of the failure by that.
  template <typename Body>
  auto find_executable_batch_size(Body&& body, BatchSizeSearchOptions options = {},
                                  const CallSite& where = CallSite::here()) {
    const CallSiteScope here(where);
    options.clean_up = [this, own = std::move(options.clean_up)] {
      self().free_memory();
      if (own) own();
    };
    return tutti::find_executable_batch_size(communicator(), std::forward<Body>(body), options);
  }

  /// Seeds LibTorch's generators. Loaders that are made afterwards and shuffle without a seed of their own take `seed`
  /// too, the same on all ranks.
  void set_seed(std::uint64_t seed, const SeedOptions& options = {}) {
    self().loader_seed_ = seed;
    const auto own = options.device_specific ? static_cast<std::uint64_t>(self().process_index()) : 0;
    tutti::set_seed(seed + own, options.deterministic);
  }

  /// The next loop over `loader` leaves out its first batches; on all ranks alike.
  template <typename Loader>
  void skip_first_batches(Loader& loader, std::int64_t num_batches) const {
    loader.skip_first_batches(num_batches);
  }

  /// The model itself: nothing wraps it.
  template <detail::model_argument Model>
  Model& unwrap_model(Model& model) const {
    return model;
  }

 protected:
  AcceleratorHelpers() = default;
  ~AcceleratorHelpers() = default;

 private:
  Accelerator& self() { return static_cast<Accelerator&>(*this); }
  const Accelerator& self() const { return static_cast<const Accelerator&>(*this); }
  const Communicator& communicator() const { return self().communicator_; }

  static void require_process(const char* what, int index, int size) {
    if (index >= 0 && index < size) return;
    throw UsageError(std::string(what) + ": there is no process " + std::to_string(index) + " among " +
                     std::to_string(size));
  }
  template <typename Function>
  static auto call_if(bool here, Function& function) {
    if constexpr (std::is_void_v<std::invoke_result_t<Function&>>) {
      if (here) function();
    } else {
      using Result = std::optional<std::remove_cvref_t<std::invoke_result_t<Function&>>>;
      return here ? Result(function()) : Result();
    }
  }

  bool triggered_ = false;
  std::optional<AllGatherWithGrad> all_gather_with_grad_;
};

}  // namespace tutti
