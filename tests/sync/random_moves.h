#pragma once
// Random training loops, made from a seed: moves over two models that train through each other, in any order. Pure; the
// same on every rank.
//
// Any part of a program is a program, so that one that fails can be shrunk: a move that means nothing where it stands
// (a second scope in a scope, the end of none) is left out when it is run.
#include <ATen/core/TensorBody.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/sync/reducer_options.h"

namespace tutti::test {

enum class Verb {
  pass,         ///< of the model's loss; that of the second model goes through the first one
  open,         ///< a scope
  close,        ///< its end
  step,         ///< of the model's optimizer
  zero,         ///< the optimizer's zero_grad()
  zero_behind,  ///< the LibTorch optimizer's own
  clip,         ///< by the norm, as the Accelerator does it
  clip_behind,  ///< by LibTorch's clip_grad_norm_, and a step
  replace,      ///< of gradients that are means by other tensors
  keep,         ///< the program holds the gradients
  synchronize,
  discard,  ///< discard_accumulation()
};
constexpr int verbs = 12;

/// An exception in a backward pass, which the program catches outside its scope.
enum class Explosion { none, on_all, on_one };

struct Move {
  Verb verb = Verb::pass;
  int model = 0;
  std::uint64_t seed = 0;
  bool in_place = false;  ///< zeroing
  // Of a pass.
  bool no_sync = false;
  bool twice = false;   ///< through one graph, which is retained
  bool nested = false;  ///< parameters are reached in backward passes inside it, as checkpointing does
  Explosion explosion = Explosion::none;
  // Of a scope.
  std::array<bool, 2> members{true, true};
  bool last = true;
  std::vector<double> weights{};  ///< by rank
  int absent = -1;                ///< the rank that leaves its passes out
};

struct MoveParameter {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kDouble;
  int model = 0;
};

struct MoveProgram {
  std::uint64_t seed = 0;
  int ranks = 1;
  SyncPolicy policy = SyncPolicy::every_pass;
  BucketOptions buckets;
  std::vector<MoveParameter> parameters;
  std::vector<std::vector<Move>> iterations;
};

MoveProgram random_moves(std::uint64_t seed, int ranks);

/// What a failed test prints.
std::string describe(const MoveProgram& program);

/// The loss of a pass on `rank`, over parameters in the program's order. The same with and without nesting.
at::Tensor loss_of(const MoveProgram& program, const Move& pass, int rank, const std::vector<at::Tensor>& parameters,
                   bool nested);

/// Whether a pass of `rank` reaches a parameter.
bool uses(const MoveProgram& program, const Move& pass, int rank, int parameter);

}  // namespace tutti::test
