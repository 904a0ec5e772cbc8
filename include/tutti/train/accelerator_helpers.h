#pragma once
// The Accelerator's collectives and helpers, which are not part of training. Names are Hugging Face Accelerate's.
// docs/collectives.md has a table.
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/detail/core/call_site_scope.h"
#include "tutti/detail/train/main_process_first.h"
#include "tutti/detail/train/prepare_traits.h"
#include "tutti/detail/train/split_between_processes.h"
#include "tutti/sync/all_gather_with_grad.h"
#include "tutti/train/collectives.h"
#include "tutti/train/find_executable_batch_size.h"

namespace tutti {

/// Options of set_seed().
struct SeedOptions {
  /// Seed each rank with seed + rank.
  bool device_specific = false;
  /// Use deterministic algorithms only. LibTorch throws for operations that have none.
  bool deterministic = false;
};

/// Seeds LibTorch's generators of the CPU and of all devices.
void set_seed(std::uint64_t seed, bool deterministic = false);

/// The base of Accelerator. Every rank must call gather() to broadcast_object_list(), check_trigger(),
/// find_executable_batch_size() and the two ..._first() scopes, in the same order. The requirements of collectives.h on
/// shapes, dtypes and errors apply here too.
template <typename Accelerator>
class AcceleratorHelpers {
 public:
  // Collectives: see collectives.h. Every rank must call them, in the same order.

  /// Concatenates the tensors of all ranks along dimension 0, in the order of ranks: [n, k] on 4 ranks become [4 n, k]
  /// on every rank. Shapes must be equal; see pad_across_processes(). A tensor without dimensions counts as one row.
  template <Nested T>
  [[nodiscard]] T gather(const T& value, const CallOptions& call = {}) const {
    return tutti::gather(communicator(), value, call);
  }
  /// gather() of one tensor that autograd differentiates through, for a loss over the outputs of all ranks. The loss
  /// needs no extra scale: see all_gather_with_grad.h. The first call duplicates the communicator.
  [[nodiscard]] at::Tensor all_gather_with_grad(const at::Tensor& tensor, const CallOptions& call = {}) {
    if (!all_gather_with_grad_) all_gather_with_grad_.emplace(communicator());
    return (*all_gather_with_grad_)(tensor, call);
  }
  /// gather() without the samples that the loader repeated, so that a metric counts each sample once. Must be called in
  /// the body of a loop over one of this Accelerator's loaders. It refers to the innermost loop.
  template <typename T>
  [[nodiscard]] T gather_for_metrics(const T& value, const CallOptions& call = {}) const {
    const auto position = self().loop_position();
    return tutti::gather_for_metrics(communicator(), value, position ? &*position : nullptr, call);
  }
  /// Reduces the tensors of all ranks elementwise, and multiplies the result by `scale`. Shapes must be equal.
  template <Nested T>
  [[nodiscard]] T reduce(const T& value, ReduceOp reduction = ReduceOp::sum, double scale = 1.0,
                         const CallOptions& call = {}) const {
    return tutti::reduce(self().communicator(), value, reduction, scale, call);
  }
  /// Pads tensors along `options.dim` to the largest size among all ranks.
  template <Nested T>
  [[nodiscard]] T pad_across_processes(const T& value, const PadOptions& options = {},
                                       const CallOptions& call = {}) const {
    return tutti::pad_across_processes(communicator(), value, options, call);
  }
  /// Returns the tensors of rank `from_process` on all ranks. Shapes must be equal.
  template <Nested T>
  [[nodiscard]] T broadcast(const T& value, int from_process = 0, const CallOptions& call = {}) const {
    return tutti::broadcast(communicator(), value, from_process, call);
  }
  /// Returns the objects of all ranks, in the order of ranks. The numbers of objects may differ. Their tensors are in
  /// CPU memory, as in the two functions below.
  template <Packable T>
  [[nodiscard]] std::vector<T> gather_object(const std::vector<T>& objects, const CallOptions& call = {}) const {
    return tutti::gather_object(communicator(), objects, call);
  }
  /// Returns the object of rank `from_process` on all ranks.
  template <Packable T>
  [[nodiscard]] T broadcast_object(const T& object, int from_process = 0, const CallOptions& call = {}) const {
    return tutti::broadcast_object(communicator(), object, from_process, call);
  }
  /// Replaces `objects` by those of rank `from_process`.
  template <Packable T>
  void broadcast_object_list(std::vector<T>& objects, int from_process = 0, const CallOptions& call = {}) const {
    objects = tutti::broadcast_object(communicator(), objects, from_process, call);
  }

  /// Makes the next check_trigger() return true on all ranks. Not a collective: for a condition that one rank observes,
  /// such as a bad metric.
  void set_trigger() { triggered_ = true; }
  /// Returns true if any rank has called set_trigger() since the last check, and resets the trigger.
  [[nodiscard]] bool check_trigger(const CallSite& where = CallSite::here()) {
    const at::Tensor any = at::scalar_tensor(triggered_ ? 1 : 0, at::kInt);
    communicator().all_reduce(any, ReduceOp::max, {.name = "check_trigger", .where = where}).wait();
    triggered_ = false;
    return any.template item<int>() != 0;
  }

  /// `const auto scope = accelerator.main_process_first();`: the scope's body runs on the main process first, then on
  /// the other ranks. See FirstProcessScope for failures. `call.timeout`: the timeout of the waiting ranks.
  FirstProcessScope main_process_first(const CallOptions& call = {}) const {
    return FirstProcessScope(communicator(), self().is_main_process(), "main_process_first", call);
  }
  /// Runs the scope's body on the node leaders first, then on the other ranks.
  FirstProcessScope local_main_process_first(const CallOptions& call = {}) const {
    return FirstProcessScope(communicator(), self().is_local_main_process(), "local_main_process_first", call);
  }

  // Not collectives. If `function` returns a value, the call returns an optional, which is empty on the other ranks.

  /// Calls `function` on rank 0 only.
  template <std::invocable Function>
  auto on_main_process(Function&& function) const {
    return call_if(self().is_main_process(), function);
  }
  /// Calls `function` on the node leaders.
  template <std::invocable Function>
  auto on_local_main_process(Function&& function) const {
    return call_if(self().is_local_main_process(), function);
  }
  /// Calls `function` on the highest rank.
  template <std::invocable Function>
  auto on_last_process(Function&& function) const {
    return call_if(self().is_last_process(), function);
  }
  /// Calls `function` on this rank only. Throws UsageError if there is no such rank.
  template <std::invocable Function>
  auto on_process(int process_index, Function&& function) const {
    require_process("on_process", process_index, communicator().size());
    return call_if(self().process_index() == process_index, function);
  }
  /// Calls `function` on this local rank of each node. Throws UsageError if it is negative or not below the world size.
  template <std::invocable Function>
  auto on_local_process(int local_process_index, Function&& function) const {
    require_process("on_local_process", local_process_index, communicator().size());
    return call_if(self().local_process_index() == local_process_index, function);
  }

  /// Returns this rank's share of `inputs`, which must be equal on all ranks; see split_between_processes.h.
  template <Splittable T>
  [[nodiscard]] T split_between_processes(const T& inputs, bool apply_padding = false) const {
    return tutti::split_between_processes(inputs, self().process_index(), self().num_processes(), apply_padding);
  }

  /// Calls `body` with decreasing batch sizes until it fits into memory: see find_executable_batch_size.h. After a
  /// failed attempt free_memory() releases the objects that the attempt prepared with this Accelerator. Ranks that wait
  /// for the failed rank in backward() or in a loop over a stream then throw PeerError.
  template <typename Body>
  auto find_executable_batch_size(Body&& body, BatchSizeSearchOptions options = {},
                                  const CallSite& where = CallSite::here()) {
    const CallSiteScope here(where);
    options.clean_up = [this, clean_up = std::move(options.clean_up)] {
      self().free_memory();
      if (clean_up) clean_up();
    };
    return tutti::find_executable_batch_size(communicator(), std::forward<Body>(body), options);
  }

  /// Seeds LibTorch's generators. Loaders that are made afterwards and shuffle without their own seed use `seed` too,
  /// the same on all ranks.
  void set_seed(std::uint64_t seed, const SeedOptions& options = {}) {
    self().set_loader_seed(seed);
    const auto offset = options.device_specific ? static_cast<std::uint64_t>(self().process_index()) : 0;
    tutti::set_seed(seed + offset, options.deterministic);
  }

  /// The next loop over `loader` skips its first `num_batches` batches. Every rank must call it with the same number.
  /// Leave it out after load_state(), which restores the position in the epoch: it throws UsageError there.
  template <typename Loader>
  void skip_first_batches(Loader& loader, std::int64_t num_batches) const {
    loader.skip_first_batches(num_batches);
  }

  /// Returns the model itself: prepare() does not wrap models.
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
  const Communicator& communicator() const { return self().internal_communicator(); }

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
