#pragma once
// Options of a Reducer.
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "tutti/comm/wire_codec.h"

namespace tutti {

/// How gradients are grouped into buckets.
struct BucketOptions {
  std::int64_t first_bucket_bytes = 1 << 20;  ///< maximum size in bytes of the bucket that is reduced first
  std::int64_t bucket_bytes = 4 << 20;        ///< maximum size in bytes of the other buckets
  /// True: after the first synchronization all ranks rebuild the buckets in the order in which gradients became ready
  /// on rank 0. This changes no sum. False: buckets stay in the reverse order of registration.
  bool reorder = true;
};

/// Which backward passes outside accumulate() synchronize. Inside accumulate() the scope decides (Accelerate's rule);
/// under no_sync() no pass synchronizes.
enum class SyncPolicy {
  every_pass,  ///< each pass, as DistributedDataParallel
  manual,      ///< each pass that is not under no_sync()
  automatic,   ///< learns the number of passes in a step, then only the last pass of a step
};

/// The position of a batch in the data that all ranks read together.
struct BatchPosition {
  std::int64_t loader = -1;  ///< number of the loader, equal on all ranks; -1: the batch is of no such loader
  std::int64_t epoch = 0;    ///< counted from 0; -1 if all epochs have the same batches
  std::int64_t batch = 0;    ///< within the epoch, counted from 0
  /// Ranks may be at different batches by right. The reducer then compares no position any more.
  bool may_differ = false;
};

/// Options of a Reducer. Must be equal on all ranks, except before_pass, batch_position and pass_error.
struct ReducerOptions {
  /// How gradients are grouped into buckets.
  BucketOptions buckets{};
  /// Which backward passes outside accumulate() synchronize.
  SyncPolicy policy = SyncPolicy::every_pass;
  /// Compare at every synchronization of several ranks: a sampled hash of the parameters, the options of the step, and
  /// the positions in the data. Each synchronization samples other elements: a difference in one of n elements is found
  /// within min(1000, ceil(n / 16)) synchronizations. Parameters on an accelerator are compared without a wait for the
  /// device: a later synchronization, as a rule the second, throws the MismatchError, and within ceil(n / 16) of them.
  /// Turn it off if replicas may differ, for example in their last bits (machines of different kinds).
  bool check_replicas = true;
  /// Wire codec of dense fp32 gradients between nodes, for example bf16_codec(). Null: gradients are sent as fp32.
  /// Sparse gradients are never encoded.
  std::shared_ptr<const WireCodec> gradient_codec{};
  /// Check synchronized gradients for infinity and NaN; Reducer::overflowed() returns the result.
  bool detect_overflow = false;
  /// Make the bits of the mean independent of how micro-batches (accumulate() scopes) are sharded to ranks, by a fixed
  /// order of additions. Rank r must run the r-th block of the window's micro-batches. On several ranks a block must
  /// hold 2^n micro-batches. Passes do not synchronize; clipping, step() or the end of the scope does. Until then .grad
  /// is the gradient of the scope alone. Throws UsageError unless parameters are float or double, gradients are dense,
  /// gradient_codec is null and every pass runs inside accumulate(). Several ranks with parameters on an accelerator
  /// need the backend staged, which adds ranks in a fixed order; the kernels of the device must be deterministic too.
  bool reproducible = false;
  /// Called when a backward pass begins, on the thread of the pass. An exception ends the pass.
  std::function<void()> before_pass{};
  /// Returns the position of this rank's current batch. Called when a synchronization begins. A rank at another batch
  /// than the others is a MismatchError on all ranks. Positions are not compared if ranks are at different loaders, or
  /// after an accumulate() scope with a weight other than 1, or after local steps.
  std::function<BatchPosition()> batch_position{};
  /// Called with an exception that is about to leave a backward pass, on the thread of the pass. It may throw another
  /// exception instead. Python bindings need this: LibTorch keeps the type of Python exceptions only.
  std::function<void(std::exception_ptr)> pass_error{};
};

}  // namespace tutti
