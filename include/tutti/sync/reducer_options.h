#pragma once
// What may be asked of a Reducer.
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

namespace tutti {

class WireCodec;

/// Which gradients travel together.
struct BucketOptions {
  std::int64_t first_bucket_bytes = 1 << 20;  ///< cap of the bucket that is reduced first
  std::int64_t bucket_bytes = 4 << 20;        ///< cap of the others
  /// The first synchronization shows in which order gradients become ready on rank 0; from then on they stand and
  /// travel in that order, on all ranks. It changes no sum. False: in the reverse order of registration.
  bool reorder = true;
};

/// How backward passes outside accumulate() decide. Inside accumulate() the scope decides (Accelerate's rule), under
/// no_sync() nothing synchronizes.
enum class SyncPolicy {
  every_pass,  ///< each pass, as DistributedDataParallel
  manual,      ///< each pass that is not under no_sync()
  automatic,   ///< learns how many passes a step has, then only the last one of them
};

/// What a Reducer is told. Every rank gives the same, but for before_pass and pass_error.
struct ReducerOptions {
  /// Which gradients travel together.
  BucketOptions buckets{};
  /// Which passes outside accumulate() synchronize.
  SyncPolicy policy = SyncPolicy::every_pass;
  /// Compare a sampled hash of the parameters in every round. Turn it off where replicas may differ in their last bits
  /// (machines of different kinds).
  bool check_replicas = true;
  /// How fp32 gradients travel between nodes, for example bf16_codec(); null: as they are. Sparse ones travel as they
  /// are.
  std::shared_ptr<const WireCodec> gradient_codec{};
  /// Look for infinity and NaN in synchronized gradients: overflowed() tells.
  bool detect_overflow = false;
  /// Add micro-batches (accumulate() scopes) in an order that does not depend on how they are dealt to ranks, so that
  /// the bits of the mean do not either: rank r must run the r-th block of the window's micro-batches, and on several
  /// ranks blocks must hold 2^n of them. Passes never synchronize: clipping, step() or the scope's end does, so until
  /// then .grad is that of the scope alone. Needs float or double parameters without gradient_codec, dense gradients,
  /// and accumulate() around every pass: UsageError otherwise.
  bool reproducible = false;
  /// Called when a backward pass begins, on the thread that it runs on; what it throws ends the pass.
  std::function<void()> before_pass{};
  /// Called with an error that is about to leave a backward pass, on the thread that it runs on. It may throw another
  /// in its place: what LibTorch passes on to another language keeps its type only as an exception of that language.
  std::function<void(std::exception_ptr)> pass_error{};
};

}  // namespace tutti
