#pragma once
// Options of an Accelerator and of its calls. Names are Hugging Face Accelerate's. Every rank must pass the same
// options, unless a struct says otherwise.
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/amp/grad_scaler.h"
#include "tutti/amp/precision.h"
#include "tutti/checkpoint/checkpoint_folder.h"
#include "tutti/comm/communicator.h"
#include "tutti/optim/lr_schedule.h"
#include "tutti/sync/reducer_options.h"

namespace tutti {

/// Options for the accumulation windows of accumulate(). Accelerate's class of the same name.
struct GradientAccumulationPlugin {
  /// Micro-batches of one rank in an optimizer step; at least 1.
  int num_steps = 1;
  /// The unit in which prepared schedules count. Accelerate's adjust_scheduler is ScheduleRule::accelerate_micro_batch.
  ScheduleRule schedule_rule = ScheduleRule::optimizer_step;
  /// End a window with the last batch of the innermost running loop over a loader for training: with the last scope on
  /// that batch, as far as earlier batches show how many scopes a batch has (docs/guides/gradient_accumulation.md).
  bool sync_with_dataloader = true;
  /// Synchronize in every backward pass, to save memory or to inspect gradients. The step stays at the window's end.
  bool sync_each_batch = false;
};

/// The folder of a run's files. Accelerate's class of the same name. The folder must be on a file system that all ranks
/// share.
struct ProjectConfiguration {
  /// Checkpoints are named `DIR/checkpoints/checkpoint_<number>_step_<step>`. Empty: no automatic names. The
  /// Accelerator makes a relative path absolute when it is created.
  std::filesystem::path project_dir{};
  /// The checkpoints of this run that are kept. A run that loads a checkpoint of the folder continues that checkpoint's
  /// run. Checkpoints of other runs are never removed.
  RetentionOptions retention{};
};

/// How an optimizer step synchronizes the buffers of the models that it trains (BatchNorm's running statistics). A
/// buffer is synchronized after the step of the last optimizer that trains its layer, or after the second step of one
/// of them. One on the CPU is written only if it differs between ranks, so that a graph that needs it stays valid.
enum class BufferSync {
  broadcast,  ///< broadcast from rank 0, as with DistributedDataParallel's broadcast_buffers
  mean,       ///< average floating-point buffers over ranks; broadcast other buffers from rank 0
  none,       ///< each rank keeps its own buffers, whose shapes may differ
};

/// Options of training whose bits do not depend on the number of ranks. Runs with equal options have equal bits: 1 rank
/// with 8 micro-batches in a step, 2 with 4, 4 with 2 and 8 with 1 end with the same parameter bytes. Rank r runs the
/// r-th block of a step's micro-batches. Gradients are summed in one order over all micro-batches (see
/// ReducerOptions::reproducible). Buffers that a forward pass changes (BatchNorm, SyncBatchNorm) are not covered, nor
/// are parameters that depend on them.
struct ReproducibleOptions {
  /// Micro-batches in an optimizer step, of all ranks together; at least 1.
  int micro_batches = 1;
  /// Seed of dropout and other random operations. Each micro-batch derives its own seed from it.
  std::uint64_t seed = 0;
  /// Number of compute threads of a rank, at most 4096. The order of LibTorch's sums inside an operation depends on it.
  int threads = 1;
};

/// Options of an Accelerator. Every rank must pass the same, except for `device` and `communicator`.
struct AcceleratorOptions {
  /// Micro-batches of one rank in an optimizer step. Excludes `gradient_accumulation_plugin`.
  int gradient_accumulation_steps = 1;
  /// The length of accumulation windows, with further options. Excludes `gradient_accumulation_steps`.
  std::optional<GradientAccumulationPlugin> gradient_accumulation_plugin{};
  /// The precision of autocast(). fp16 adds a loss scaler.
  Precision mixed_precision = Precision::no;
  /// The device of this rank: CUDA or any other accelerator of LibTorch. Loaders move batches to it. The program moves
  /// its models: model->to(device()). A device type without a number stands for the device whose number is the local
  /// rank modulo the number of devices that the process sees. CommunicatorOptions::backend chooses how gradients on it
  /// are summed. Unset: batches are not moved.
  std::optional<at::Device> device{};
  /// Options of the loss scaler; used with fp16 only.
  GradScalerOptions grad_scaler{};
  /// The folder of checkpoints and metrics.jsonl, and how many checkpoints are kept. Unset: nothing is written unless
  /// the program names a folder.
  ProjectConfiguration project{};
  /// How backward passes outside accumulate() decide whether they synchronize.
  SyncPolicy sync_policy = SyncPolicy::automatic;
  /// How gradients are grouped into buckets, and the order of the buckets.
  BucketOptions buckets{};
  /// Compare a sampled hash of the parameters at every synchronization of several ranks. Replicas that differ are a
  /// MismatchError. Each synchronization samples other elements, so that a difference in one of n elements is found
  /// within min(1000, ceil(n / 16)) synchronizations. Layers that write parameters from a rank's own data (Embedding
  /// with max_norm) are a UsageError in prepare(). Turn it off if replicas may differ, for example in their last bits
  /// (machines of different kinds); then step options and positions in the data are not compared either.
  bool check_replicas = true;
  /// Wire codec of fp32 gradients between nodes, for example bf16_codec(). Null: fp32.
  std::shared_ptr<const WireCodec> gradient_codec{};
  /// How optimizer steps synchronize the models' buffers.
  BufferSync buffer_sync = BufferSync::broadcast;
  /// Parameters of which every rank trains its own: names of a prepared model's named_parameters(), or names of its
  /// modules for all parameters below them. prepare() does not broadcast them, and no check compares them. Their
  /// gradient is the mean over this rank's micro-batches, and clip_grad_norm_() clips them by their own norm.
  /// Checkpoints hold the state of each rank, so they are loaded on the same number of ranks. Throws UsageError with
  /// fp16, with `reproducible` and in join_uneven_inputs(). prepare() throws UsageError for a name that no prepared
  /// model has. Buffers follow `buffer_sync`.
  std::vector<std::string> ignored_parameters{};
  /// Train to the same bits on any number of ranks. This sets gradient_accumulation_steps and LibTorch's number of
  /// threads. Loaders shard blocks_by_window, and their data must fill whole steps, except loaders with
  /// DataLoaderOptions::evaluation. Every backward pass must run inside
  /// accumulate(). Gradients are synchronized when clipping, step() or the scope's end needs them, not in backward.
  /// Throws UsageError for options and calls that would change the bits.
  std::optional<ReproducibleOptions> reproducible{};
  /// Step AdamW, Adam, SGD and Adagrad with fused kernels: see OptimizerOptions.
  bool fused_optimizers = true;
  /// Backend and timeouts. Unused if `communicator` is set.
  CommunicatorOptions communication{};
  /// An existing group to use, instead of connecting with the launcher's variables.
  std::optional<Communicator> communicator{};
};

/// Options of one accumulate() scope. They may differ between ranks.
struct AccumulateOptions {
  /// What this micro-batch adds to the step's divisor, for example its number of tokens if the loss is a sum over
  /// tokens. The loss is not multiplied by it. Unset: 1. After a resume on another number of ranks, a weight that is
  /// set stays what it was, and 1 stands for a whole batch if the loader has split_batches. With `reproducible` a whole
  /// number of at most 2^24.
  std::optional<double> weight{};
};

/// Options of save_state(). Every rank must pass the same.
struct SaveStateOptions {
  /// The checkpoint's folder; it must not exist. Empty: the next automatic name in the project.
  std::filesystem::path folder{};
  /// Return as soon as the state is copied, and write it from a background thread.
  bool asynchronous = false;
  /// The metric of this checkpoint, for RetentionOptions::keep_best.
  std::optional<double> metric{};
};

}  // namespace tutti
