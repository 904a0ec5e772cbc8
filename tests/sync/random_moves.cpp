#include "sync/random_moves.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <random>
#include <sstream>

#include "support/training.h"

namespace tutti::test {

namespace {

class MoveGenerator {
 public:
  MoveGenerator(std::uint64_t seed, int ranks) : random_(seed) {
    program_.seed = seed;
    program_.ranks = ranks;
    program_.parts = seed % 3 == 2;
  }

  MoveProgram program() {
    program_.policy =
        pick<SyncPolicy>({SyncPolicy::automatic, SyncPolicy::automatic, SyncPolicy::manual, SyncPolicy::every_pass});
    const std::vector<std::int64_t> caps = {1, 100, 300, 1 << 20};
    program_.buckets = {.first_bucket_bytes = pick(caps), .bucket_bytes = pick(caps)};
    const at::ScalarType dtype = chance(70) ? at::kDouble : at::kFloat;
    const std::vector<std::vector<std::int64_t>> shapes = {{}, {3}, {17}, {40}, {2, 3}, {5, 7}};
    for (int model = 0; model < 2; ++model) {
      for (std::uint64_t i = 0, count = 1 + below(3); i < count; ++i) {
        program_.parameters.push_back({.shape = pick(shapes), .dtype = dtype, .model = model});
      }
    }
    usual_length_ = 1 + static_cast<int>(below(3));
    no_sync_ = chance(25);
    scopes_ = chance(50) ? 50 : chance(50) ? 100 : 0;
    for (std::uint64_t i = 0, count = 3 + below(6); i < count; ++i) make_iteration();
    return std::move(program_);
  }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool chance(unsigned percent) { return below(100) < percent; }
  template <typename T>
  T pick(const std::vector<T>& values) {
    return values[below(values.size())];
  }

  void make_iteration() {
    std::vector<Move> moves;
    const bool scoped = chance(scopes_);
    const int length = chance(80) ? usual_length_ : 1 + static_cast<int>(below(4));
    if (scoped && length == 1 && chance(60)) {
      // One scope has turns of both models and several steps.
      moves.push_back(open(true));
      add_turns(moves);
      moves.push_back({.verb = Verb::close});
    } else if (scoped) {
      const int model = static_cast<int>(below(2));
      for (int i = 0; i < length; ++i) {
        moves.push_back(open(i + 1 == length));
        moves.push_back(pass(model));
        if (i + 1 == length || chance(50)) add_step(moves, model);
        if (model == 1 && i + 1 == length) add_step(moves, 0);
        moves.push_back({.verb = Verb::close});
      }
    } else if (chance(50)) {
      add_turns(moves);
    } else {
      const int model = static_cast<int>(below(2));
      for (int i = 0; i < length; ++i) moves.push_back(pass(model));
      add_step(moves, model);
      if (model == 1) add_step(moves, 0);
    }
    for (std::uint64_t i = 0, count = chance(50) ? 0 : 1 + below(3); i < count; ++i) {
      moves.insert(moves.begin() + static_cast<std::ptrdiff_t>(below(moves.size() + 1)), any());
    }
    program_.iterations.push_back(std::move(moves));
  }

  /// Adds turns as in a GAN's loop: some steps of the first model, then one of the second.
  void add_turns(std::vector<Move>& moves) {
    for (std::uint64_t i = 0, count = 1 + below(3); i < count; ++i) {
      moves.push_back(pass(0));
      if (chance(20)) moves.push_back(pass(0));
      add_step(moves, 0);
    }
    if (chance(30)) return;
    moves.push_back(pass(1));
    add_step(moves, 1);
    if (chance(80)) moves.push_back(zero(0));
  }

  void add_step(std::vector<Move>& moves, int model) {
    if (chance(15)) moves.push_back({.verb = Verb::clip, .model = model, .seed = random_()});
    const bool behind = chance(15);
    moves.push_back({.verb = behind ? Verb::clip_behind : Verb::step, .model = model, .seed = random_()});
    if (chance(93)) moves.push_back(zero(model));
  }

  Move pass(int model) {
    Move move{.verb = Verb::pass, .model = model, .seed = random_()};
    move.no_sync = no_sync_ && chance(40);
    move.twice = chance(12);
    move.nested = chance(15);
    if (chance(4)) move.explosion = chance(50) ? Explosion::on_all : Explosion::on_one;
    if (program_.parts && chance(50)) {
      for (int rank = 0; rank < program_.ranks; ++rank) move.parts.push_back(1 + static_cast<int>(below(3)));
      move.nested = false;
    }
    return move;
  }
  Move zero(int model) {
    return {.verb = chance(85) ? Verb::zero : Verb::zero_behind, .model = model, .in_place = chance(20)};
  }
  Move open(bool last) {
    Move move{.verb = Verb::open, .last = last};
    if (chance(15)) move.members[below(2)] = false;
    for (int rank = 0; rank < program_.ranks; ++rank) move.weights.push_back(pick<double>({0.5, 1, 1, 1, 2, 3}));
    if (program_.ranks > 1 && chance(12)) move.absent = static_cast<int>(below(program_.ranks));
    return move;
  }
  Move any() {
    const auto verb = static_cast<Verb>(below(verbs));
    const int model = static_cast<int>(below(2));
    if (verb == Verb::pass) return pass(model);
    if (verb == Verb::open) return open(chance(50));
    return {.verb = verb, .model = model, .seed = random_(), .in_place = chance(20)};
  }

  std::mt19937_64 random_;
  MoveProgram program_;
  int usual_length_ = 1;
  bool no_sync_ = false;
  unsigned scopes_ = 0;  // percentage of iterations with scopes
};

std::string name_of(const Move& move) {
  const std::array names{"pass",        "open",
                         "close",       "step",
                         "zero_grad",   "LibTorch's zero_grad",
                         "clip",        "LibTorch's clip and step",
                         "replace",     "keep",
                         "synchronize", "discard_accumulation",
                         "resume"};
  return names[static_cast<std::size_t>(move.verb)];
}

void describe(std::ostream& text, const Move& move) {
  text << name_of(move);
  if (move.verb == Verb::open) {
    text << (move.members[0] ? " D" : "") << (move.members[1] ? " G" : "") << (move.last ? ", last" : "")
         << ", weights " << at::ArrayRef<double>(move.weights);
    if (move.absent >= 0) text << ", without rank " << move.absent;
  } else if (move.verb != Verb::close && move.verb != Verb::resume) {
    text << (move.model == 0 ? " D" : " G");
  }
  if (!move.parts.empty()) text << ", parts " << at::ArrayRef<int>(move.parts);
  if (move.in_place) text << " in place";
  if (move.no_sync) text << " no_sync";
  if (move.twice) text << " twice";
  if (move.nested) text << " nested";
  if (move.explosion == Explosion::on_all) text << " explodes";
  if (move.explosion == Explosion::on_one) text << " explodes on one rank";
}

/// Tensors that autograd does not see as inputs.
struct Factors {
  at::Tensor parameter;
  at::Tensor factors;
};

at::Tensor term_of(const Factors& of) {
  return at::tanh((of.parameter.to(at::kDouble) * of.factors).sum() /
                  std::sqrt(static_cast<double>(of.factors.numel())));
}

/// A term whose forward runs again in backward.
struct NestedTerm : torch::autograd::Function<NestedTerm> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor&, const Factors& of) {
    context->saved_data["parameter"] = of.parameter;
    context->saved_data["factors"] = of.factors;
    return term_of(of).detach().clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const Factors of{context->saved_data["parameter"].toTensor(), context->saved_data["factors"].toTensor()};
    const at::AutoGradMode enable(true);
    term_of(of).backward(gradients[0]);
    return {at::zeros_like(gradients[0]), at::Tensor()};
  }
};

}  // namespace

MoveProgram random_moves(std::uint64_t seed, int ranks) {
  return MoveGenerator(seed, ranks).program();
}

std::string describe(const MoveProgram& program) {
  std::ostringstream text;
  const std::array policies{"every pass", "manual", "automatic"};
  text << "seed " << program.seed << ", " << program.ranks << " ranks, "
       << policies[static_cast<std::size_t>(program.policy)] << ", buckets of " << program.buckets.first_bucket_bytes
       << " and " << program.buckets.bucket_bytes << " bytes" << (program.parts ? ", parts" : "") << '\n';
  for (const MoveParameter& parameter : program.parameters) {
    text << (parameter.model == 0 ? "D " : "G ") << toString(parameter.dtype) << at::IntArrayRef(parameter.shape)
         << '\n';
  }
  for (std::size_t i = 0; i < program.iterations.size(); ++i) {
    text << "iteration " << i << ": ";
    for (const Move& move : program.iterations[i]) {
      describe(text, move);
      text << "; ";
    }
    text << '\n';
  }
  return text.str();
}

bool reaches(const Move& pass, int rank, int model) {
  return pass.parts.empty() ? model <= pass.model : (pass.parts[rank] >> model & 1) != 0;
}

bool reaches(const MoveProgram& program, const Move& pass, int model) {
  for (int rank = 0; rank < program.ranks; ++rank) {
    if (reaches(pass, rank, model)) return true;
  }
  return false;
}

bool uses(const MoveProgram& program, const Move& pass, int rank, int parameter) {
  const int model = program.parameters[parameter].model;
  if (!reaches(pass, rank, model)) return false;
  // Every pass uses the first parameter of each model, so that all ranks' passes reach the same models.
  if (parameter == 0 || program.parameters[parameter - 1].model != model) return true;
  return (pass.seed >> (8 * rank + parameter)) % 4 != 0;
}

at::Tensor loss_of(const MoveProgram& program, const Move& pass, int rank, const std::vector<at::Tensor>& parameters,
                   bool nested) {
  const at::Tensor anchor = at::zeros({}, at::kDouble).requires_grad_();
  std::array<at::Tensor, 2> sums{anchor * 0, anchor * 0};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!uses(program, pass, rank, static_cast<int>(i))) continue;
    const auto seed = pass.seed + 100 * static_cast<std::uint64_t>(rank) + i;
    const Factors of{parameters[i], random_tensor(parameters[i].sizes(), seed, at::kDouble)};
    at::Tensor& sum = sums[program.parameters[i].model];
    sum = sum + (nested ? NestedTerm::apply(anchor, of) : term_of(of));
  }
  if (!reaches(pass, rank, 1)) return sums[0];
  return reaches(pass, rank, 0) ? (sums[1] + 0.3) * (sums[0] + 0.7) : sums[1];
}

}  // namespace tutti::test
