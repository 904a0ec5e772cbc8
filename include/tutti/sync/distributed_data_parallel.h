#pragma once
// DistributedDataParallel: data-parallel training of one model without an Accelerator. The model is not wrapped: hooks
// on its parameters synchronize the gradients.
//
// Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
#include <concepts>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/detail/core/call_site.h"
#include "tutti/detail/core/call_site_scope.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/detail/sync/sync_scopes.h"

namespace torch::nn {
class Module;
}

namespace tutti {

/// Named parameters of `module`. A shared parameter occurs once.
std::vector<NamedParameter> named_parameters_of(const torch::nn::Module& module);

/// Broadcasts the tensors of rank 0 to all ranks, a few megabytes at a time. Shapes and dtypes must be equal on all
/// ranks. Every rank must call it.
void replicate_tensors(const std::vector<at::Tensor>& tensors, const Communicator& communicator);

/// Broadcasts parameters and buffers of rank 0 to all ranks. The parameters must match: a Reducer has compared them.
/// Every rank must call it. Throws MismatchError, naming a buffer whose shape or dtype differs between ranks. If
/// `buffers_may_differ`, such buffers stay as they are.
void replicate_model(const std::vector<at::Tensor>& parameters, const std::vector<NamedParameter>& buffers,
                     bool buffers_may_differ, const Communicator& communicator);

/// Broadcasts the parameters and buffers of rank 0's `module` to all ranks. Every rank must call it. Throws
/// MismatchError, naming a buffer whose shape or dtype differs between ranks.
void replicate_module(const torch::nn::Module& module, const Communicator& communicator);

/// Synchronizes the gradients of one model. After each backward pass that did not run under no_sync(), .grad holds the
/// mean over ranks of the sum over the passes since zero_grad(). Works with any optimizer. Gradients are synchronized
/// until this object is destroyed. Buffers (BatchNorm's statistics) are broadcast in the constructor only, unlike with
/// PyTorch's broadcast_buffers; AcceleratorOptions::buffer_sync synchronizes them at every step.
class DistributedDataParallel {
 public:
  /// Compares the model's structure across ranks, broadcasts parameters and buffers from rank 0 and attaches hooks to
  /// the parameters. Every rank must call it. Throws MismatchError if the structures differ. On several ranks throws
  /// UsageError for an Embedding with max_norm, unless ReducerOptions::check_replicas is false.
  DistributedDataParallel(const torch::nn::Module& module, const Communicator& communicator,
                          const ReducerOptions& options = {});
  /// The same constructor for a module holder or a shared_ptr to a module.
  template <typename Holder>
  requires requires(Holder& holder) {
    { *holder } -> std::convertible_to<const torch::nn::Module&>;
  }
  DistributedDataParallel(Holder& holder, const Communicator& communicator, const ReducerOptions& options = {})
      : DistributedDataParallel(static_cast<const torch::nn::Module&>(*holder), communicator, options) {}

  /// Backward passes in the returned scope add to local gradients. The first pass after the scope synchronizes the sum.
  /// Has no effect if `when` is false.
  NoSyncScope no_sync(bool when = true);
  /// Makes the next backward pass synchronize, even under no_sync().
  void trigger_sync_in_backward() { reducer_->trigger_sync_in_backward(); }
  /// Synchronizes the gradients that no pass has synchronized. Every rank must call it. The compiler fills in `where`.
  void synchronize(const CallSite& where = CallSite::here()) {
    const CallSiteScope here(where);
    reducer_->synchronize();
  }

  /// Counters and times of synchronization on this rank.
  SyncStats stats() const { return reducer_->stats(); }
  /// The reducer that synchronizes the gradients, for custom loops.
  Reducer& reducer() { return *reducer_; }

 private:
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace tutti
