#pragma once
// Generates random training programs from a seed. All functions are pure, so ranks get equal programs.
//
// Gradients and weights are small integers and all other factors are powers of two, so that sums are exact in any
// order. If a program is `exact`, the results of ranks and of one process must have equal bits.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/sync/reducer_options.h"

namespace tutti::test {

struct ProgramParameter {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  bool transposed = false;  ///< not row-major; only with two dimensions
  bool frozen = false;
  int optimizer = 0;  ///< index of the optimizer that steps the parameter
};

/// How a backward pass reaches a parameter.
enum class Reach {
  once,
  twice,   ///< two nodes of the graph lead to the parameter
  nested,  ///< in a nested backward pass, as in activation checkpointing
};

struct Use {
  int parameter = 0;
  Reach reach = Reach::once;
  std::uint64_t seed = 0;  ///< of the gradient
};

/// One backward pass on all ranks.
struct ProgramPass {
  std::vector<std::vector<Use>> uses;  ///< by rank
  bool two_losses = false;             ///< one backward call over two roots
  bool no_sync = false;
  bool trigger = false;  ///< trigger_sync_in_backward() is called before the pass
  double loss_scale = 1;
};

/// An action between two backward passes.
enum class Interlude { none, evaluate, synchronize, discard, save_and_load };

/// A micro-batch, which in a weighted window runs inside accumulate().
struct ProgramScope {
  std::vector<ProgramPass> passes;
  std::vector<double> weights;  ///< by rank
  std::vector<bool> present;    ///< by rank: false if the rank calls no backward
  Interlude before = Interlude::none;
};

enum class Zeroing {
  never,
  to_none,
  in_place,
  behind_the_back_to_none,   ///< zero_grad() of the LibTorch optimizer
  behind_the_back_in_place,  ///< zero_grad(false) of the LibTorch optimizer
};

enum class Clipping { none, in_place, replaced };

/// An exception that is thrown in one scope of a window and caught.
struct Fault {
  enum class Where {
    between,          ///< before a scope, on all ranks; the program then discards the window
    before_backward,  ///< inside accumulate()
    in_backward,
  };
  Where where = Where::between;
  std::size_t scope = 0;
  std::optional<int> rank{};  ///< nullopt: all ranks
  bool swallowed = false;     ///< the rank continues the window, instead of clearing gradients at once
  bool loses_window = true;   ///< the window's gradients are lost on all ranks
};

/// The passes between two steps of the optimizers that step at the window's end.
struct ProgramWindow {
  bool weighted = false;
  bool local = false;  ///< set_local(true); all ranks then have the same gradients
  std::vector<ProgramScope> scopes;
  std::vector<bool> steps;  ///< by optimizer; at least one is true
  bool sync_each_batch = false;
  bool step_in_scopes = false;       ///< step() and zero_grad() in every scope, as in the documented loop
  bool zero_first = false;           ///< zero_grad() at the top of the scopes instead of after step()
  std::vector<Zeroing> zero_before;  ///< by optimizer
  std::vector<Zeroing> zero_after;   ///< by optimizer that steps
  Clipping clipping = Clipping::none;
  bool prepares_clipping = false;  ///< calls prepare_step() before clipping, as Accelerator::clip_grad_norm_ does
  std::optional<Fault> fault{};
};

struct Program {
  std::uint64_t seed = 0;
  int ranks = 1;
  std::vector<ProgramParameter> parameters;
  int optimizers = 1;
  bool parts = false;  ///< the optimizers train parts of one model, which ranks may leave out of a pass
  double learning_rate = 0.25;
  SyncPolicy policy = SyncPolicy::every_pass;
  BucketOptions buckets;
  std::vector<ProgramWindow> windows;
  bool exact = true;  ///< no operation rounds
};

Program random_program(std::uint64_t seed, int ranks);

/// The program as text, for the message of a failed test.
std::string describe(const Program& program);

/// A double tensor of `shape` with integers from -4 to 4. Equal seeds give equal tensors.
at::Tensor random_integers(at::IntArrayRef shape, std::uint64_t seed);

/// The gradient that a use adds to its parameter, in double.
at::Tensor gradient_of(const Program& program, const Use& use);

}  // namespace tutti::test
