#pragma once
// Training loops that run on the CPU and on a device with the same data, for the table of waits and for the matrix.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::test {

/// Which backward passes a step has, and which of them synchronize.
enum class Loop {
  every_pass,     ///< one pass, outside accumulate()
  automatic,      ///< two passes, outside accumulate(); the policy learns the window
  accumulate,     ///< two passes in accumulate()
  no_sync,        ///< one pass under no_sync(), then one that synchronizes
  join,           ///< accumulate(), and the last rank runs out of data first
  checkpointing,  ///< a nested backward pass reaches some parameters (activation checkpointing)
  unused,         ///< rank 1 does not use some parameters in odd steps
  late,           ///< some parameters are used from step 2 on
  two_models,     ///< two models with an optimizer each
};

/// What a loop does beside training a perceptron in fp32.
enum class Extra {
  none,
  clip_norm,
  clip_norm_and_read,
  clip_value,
  bf16,
  fp16,  ///< with an overflow in step 1
  batch_norm_broadcast,
  batch_norm_mean,
  batch_norm_local,
  sync_batch_norm,
  many_buckets,
  metrics,     ///< gather and reduce a value in each pass; in Loop::join gather_for_metrics too
  checkpoint,  ///< the state is saved and loaded after step 1
  local_sgd,
  slowmo,
  diloco_int8,
  reproducible,
};

const std::vector<Loop>& all_loops();
const std::vector<Extra>& all_extras();
std::string name_of(Loop loop);
std::string name_of(Extra extra);

/// False for combinations that tutti refuses, and for those in which the extra has no meaning.
bool can_train(Loop loop, Extra extra);

struct Training {
  Loop loop = Loop::accumulate;
  Extra extra = Extra::none;
  int steps = 4;
  /// Called on each rank before the passes of each optimizer step.
  std::function<void(int step)> on_step = [](int) {};
  /// For Extra::checkpoint; a folder that does not exist.
  std::filesystem::path folder{};
};

/// Trains on this rank and returns the parameters, buffers and metrics at the end, in CPU memory.
std::vector<at::Tensor> train(const Communicator& communicator, c10::Device device, const Training& training);

}  // namespace tutti::test
