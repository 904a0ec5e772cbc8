#pragma once
// Generates random training loops from a seed: sequences of moves over two models that train through each other. All
// functions are pure, so ranks get equal programs.
//
// Every subsequence of a program's moves is a program, so that a failing program can be shrunk. A run skips a move that
// has no meaning at its position, for example the opening of a scope inside a scope.
#include <ATen/core/TensorBody.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/sync/reducer_options.h"

namespace tutti::test {

enum class Verb {
  pass,         ///< a backward pass of the model's loss; the second model's loss also reaches the first model
  open,         ///< opens a scope
  close,        ///< closes the scope
  step,         ///< step() of the model's optimizer
  zero,         ///< zero_grad() of the model's optimizer
  zero_behind,  ///< zero_grad() of the LibTorch optimizer
  clip,         ///< clips by the norm, as the Accelerator does
  clip_behind,  ///< clips by LibTorch's clip_grad_norm_(), then steps
  replace,      ///< replaces gradients that are means by other tensors
  keep,         ///< makes the program hold the gradients
  synchronize,
  discard,  ///< discard_accumulation()
  resume,   ///< saves the windows of both models, and loads them into new reducers, as in another process
};
constexpr int verbs = 13;

/// The ranks on which a backward pass throws. The program catches the exception outside the scope.
enum class Explosion { none, on_all, on_one };

struct Move {
  Verb verb = Verb::pass;
  int model = 0;
  std::uint64_t seed = 0;
  bool in_place = false;  ///< argument of zero and zero_behind
  // Fields of a pass.
  bool no_sync = false;
  bool twice = false;   ///< two backward passes through one graph, which is retained
  bool nested = false;  ///< nested backward passes reach the parameters, as in activation checkpointing
  Explosion explosion = Explosion::none;
  std::vector<int> parts{};  ///< by rank: the models that the pass reaches, as bits; empty: those of `model`
  // Fields of a scope.
  std::array<bool, 2> members{true, true};
  bool last = true;
  std::vector<double> weights{};  ///< by rank
  int absent = -1;                ///< the rank that skips the scope's pass; -1: none
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
  bool parts = false;  ///< the models are parts of one model, which a rank may leave out of a pass
  BucketOptions buckets;
  std::vector<MoveParameter> parameters;
  std::vector<std::vector<Move>> iterations;
};

MoveProgram random_moves(std::uint64_t seed, int ranks);

/// The program as text, for the message of a failed test.
std::string describe(const MoveProgram& program);

/// The loss of a pass on `rank`. `parameters` are in the program's order. `nested` does not change the value.
at::Tensor loss_of(const MoveProgram& program, const Move& pass, int rank, const std::vector<at::Tensor>& parameters,
                   bool nested);

/// True if a pass of `rank` reaches the model.
bool reaches(const Move& pass, int rank, int model);
/// True if a pass reaches the model on any rank.
bool reaches(const MoveProgram& program, const Move& pass, int model);

/// True if a pass of `rank` reaches the parameter.
bool uses(const MoveProgram& program, const Move& pass, int rank, int parameter);

}  // namespace tutti::test
