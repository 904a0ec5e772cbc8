#pragma once
// DistributedDataParallel: one model on many ranks, for those who want no Accelerator. The model stays what it is:
// nothing wraps it, hooks on its parameters do the work.
//
// Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
#include <concepts>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/core/call_site.h"
#include "tutti/detail/core/call_site_scope.h"
#include "tutti/sync/reducer.h"
#include "tutti/sync/sync_scopes.h"

namespace torch::nn {
class Module;
}

namespace tutti {

/// Named parameters of `module`, each once however often it is shared.
std::vector<NamedParameter> named_parameters_of(const torch::nn::Module& module);

/// Every rank's tensors become those of rank 0, a few megabytes at a time. Shapes and dtypes must agree. Every rank
/// must call it.
void replicate_tensors(const std::vector<at::Tensor>& tensors, const Communicator& communicator);

/// Parameters and buffers of `module` become those of rank 0. Every rank must call it.
void replicate_module(const torch::nn::Module& module, const Communicator& communicator);

/// Synchronizes the gradients of one model: after each backward pass .grad holds the mean over ranks (of the sum over
/// passes since zero_grad), unless the pass ran under no_sync(). Works with any optimizer. Gradients are synchronized
/// for as long as this object lives.
class DistributedDataParallel {
 public:
  /// Compares the model's structure across ranks (MismatchError), makes parameters and buffers those of rank 0,
  /// attaches to the parameters. Every rank must call it.
  DistributedDataParallel(const torch::nn::Module& module, const Communicator& communicator,
                          const ReducerOptions& options = {});
  /// The same for a module holder or a shared_ptr.
  template <typename Holder>
  requires requires(Holder& holder) {
    { *holder } -> std::convertible_to<const torch::nn::Module&>;
  }
  DistributedDataParallel(Holder& holder, const Communicator& communicator, const ReducerOptions& options = {})
      : DistributedDataParallel(static_cast<const torch::nn::Module&>(*holder), communicator, options) {}

  /// Backward passes under the returned scope keep gradients local; the first one outside synchronizes their sum.
  NoSyncScope no_sync(bool when = true);
  /// The next backward pass synchronizes although its scope says no_sync().
  void trigger_sync_in_backward() { reducer_->trigger_sync_in_backward(); }
  /// Synchronizes what no pass has synchronized. Every rank must call it. `where` is filled in by the compiler.
  void synchronize(const CallSite& where = CallSite::here()) {
    const CallSiteScope here(where);
    reducer_->synchronize();
  }

  /// What synchronization did and cost on this rank.
  SyncStats stats() const { return reducer_->stats(); }
  /// What does the work, for those who build on it.
  Reducer& reducer() { return *reducer_; }

 private:
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace tutti
