#pragma once
// Generates random training programs of an Accelerator from a seed: one model of two parts, an optimizer for each part,
// and in each iteration the moves of a loop. All functions are pure, so ranks get equal programs.
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/sync/reducer_options.h"
#include "tutti/train/accelerator_options.h"

namespace tutti::test {

enum class TrainingVerb {
  forward,               ///< one forward pass of both parts, with a loss for each
  backward,              ///< the backward pass of the part's loss
  clip,                  ///< clips the norm of the part's gradients
  step,                  ///< step() of the part's optimizer
  zero,                  ///< zero_grad() of the part's optimizer
  gather,                ///< collectives over complex tensors whose conjugation is lazy
  unfreeze,              ///< unfreezes the part's frozen parameter and adds it to the optimizer, as a group
  add_layer,             ///< adds a parameter to the part and to its optimizer, as a group
  prepare,               ///< prepares the model and both optimizers again
  set_rate,              ///< sets the learning rate of the part's optimizer
  set_rate_of_one_rank,  ///< sets the learning rate on the last rank only
  resume,                ///< saves a checkpoint, and loads it into a new Accelerator, model and optimizers
};

struct TrainingMove {
  TrainingVerb verb = TrainingVerb::forward;
  int part = 0;
  std::uint64_t seed = 0;
};

struct TrainingIteration {
  std::vector<TrainingMove> moves;
  /// True if the iteration must be an error on all ranks: a parameter joins an optimizer that is not prepared again, or
  /// ranks have different learning rates.
  bool is_refused = false;
};

struct TrainingProgram {
  std::uint64_t seed = 0;
  int ranks = 1;
  SyncPolicy policy = SyncPolicy::automatic;
  BufferSync buffer_sync = BufferSync::broadcast;
  BucketOptions buckets;
  bool is_complex = false;  ///< each part has a complex parameter, which the loss reads conjugated
  std::vector<TrainingIteration> iterations;
};

TrainingProgram random_training(std::uint64_t seed, int ranks);

/// The program as text, for the message of a failed test.
std::string describe(const TrainingProgram& program);

}  // namespace tutti::test
