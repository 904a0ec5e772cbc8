#pragma once
// Random training programs, made from a seed: the same on every rank. Pure.
//
// Gradients and weights are small integers, everything else is a power of two, so that sums are exact in whatever order
// they are added: where a program says `exact`, ranks and one process must agree bit for bit.
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
  bool transposed = false;  ///< of two dimensions, and not row-major
  bool frozen = false;
  int optimizer = 0;  ///< which one steps it
};

/// How a backward pass reaches a parameter.
enum class Reach {
  once,
  twice,   ///< two nodes of the graph lead to it
  nested,  ///< in a backward pass inside the backward pass, as activation checkpointing does
};

struct Use {
  int parameter = 0;
  Reach reach = Reach::once;
  std::uint64_t seed = 0;  ///< of its gradient
};

/// One backward pass on all ranks.
struct ProgramPass {
  std::vector<std::vector<Use>> uses;  ///< by rank
  bool two_losses = false;             ///< one backward call over two roots
  bool no_sync = false;
  bool trigger = false;  ///< trigger_sync_in_backward() before it
  double loss_scale = 1;
};

/// What happens between two backward passes.
enum class Interlude { none, evaluate, synchronize, discard, save_and_load };

/// A micro-batch: inside accumulate() in a weighted window.
struct ProgramScope {
  std::vector<ProgramPass> passes;
  std::vector<double> weights;  ///< by rank
  std::vector<bool> present;    ///< by rank: whether it calls backward at all
  Interlude before = Interlude::none;
};

enum class Zeroing {
  never,
  to_none,
  in_place,
  behind_the_back_to_none,   ///< the LibTorch optimizer's own
  behind_the_back_in_place,  ///< the same
};

enum class Clipping { none, in_place, replaced };

/// An exception, thrown in one scope of a window and handled.
struct Fault {
  enum class Where {
    between,          ///< outside everything, on all ranks; handled by discarding the window
    before_backward,  ///< inside accumulate()
    in_backward,
  };
  Where where = Where::between;
  std::size_t scope = 0;
  std::optional<int> rank{};  ///< nullopt: all of them
  bool swallowed = false;     ///< the rank goes on with the window, instead of clearing gradients at once
  bool loses_window = true;   ///< whether the window's gradients are lost on all ranks
};

/// What lies between two steps of the optimizers that step at its end.
struct ProgramWindow {
  bool weighted = false;
  bool local = false;  ///< set_local(): all ranks then have the same gradients
  std::vector<ProgramScope> scopes;
  std::vector<bool> steps;  ///< by optimizer; always at least one
  bool sync_each_batch = false;
  bool step_in_scopes = false;       ///< step() and zero_grad() in every scope, as the documents do
  bool zero_first = false;           ///< zero_grad() at the top of the scopes instead of after step()
  std::vector<Zeroing> zero_before;  ///< by optimizer
  std::vector<Zeroing> zero_after;   ///< by optimizer that steps
  Clipping clipping = Clipping::none;
  bool prepares_clipping = false;  ///< by prepare_step(), as Accelerator::clip_grad_norm_ does
  std::optional<Fault> fault{};
};

struct Program {
  std::uint64_t seed = 0;
  int ranks = 1;
  std::vector<ProgramParameter> parameters;
  int optimizers = 1;
  double learning_rate = 0.25;
  SyncPolicy policy = SyncPolicy::every_pass;
  BucketOptions buckets;
  std::vector<ProgramWindow> windows;
  bool exact = true;  ///< nothing in it is rounded
};

Program random_program(std::uint64_t seed, int ranks);

/// What a failed test prints.
std::string describe(const Program& program);

/// Integers from -4 to 4, in double, of `shape`: a function of the seed alone.
at::Tensor random_integers(at::IntArrayRef shape, std::uint64_t seed);

/// The gradient that a use of a parameter brings, in double.
at::Tensor gradient_of(const Program& program, const Use& use);

}  // namespace tutti::test
