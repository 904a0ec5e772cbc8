#include "sync/random_moves_run.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/utils/clip_grad.h>

#include <stdexcept>

#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/sync_scopes.h"
#include "tutti/optim/clip_grad.h"
#include "tutti/state/state_dict.h"

namespace tutti::test {

namespace {

/// The exception of a program's own faults.
struct Exploded : std::runtime_error {
  Exploded() : std::runtime_error("exploded") {}
};

/// Throws in backward. The node is the first of the graph, so that every reducer has noticed the pass before.
struct Bomb : torch::autograd::Function<Bomb> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& anchor) { return anchor * 0; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw Exploded();
  }
};

}  // namespace

MovesRun::MovesRun(const MoveProgram& program, const Communicator& communicator)
    : program_(program), communicator_(communicator), status_(communicator.duplicate("status")) {
  for (int m = 0; m < 2; ++m) {
    Model& model = models_[m];
    std::vector<at::Tensor> reference;
    for (std::size_t i = 0; i < program.parameters.size(); ++i) {
      const MoveParameter& kind = program.parameters[i];
      if (kind.model != m) continue;
      const auto values = [&] { return random_tensor(kind.shape, program.seed + i, kind.dtype).requires_grad_(); };
      reference.push_back(values());
      model.parameters.push_back(values());
      model.named.push_back({.name = "p" + std::to_string(i), .tensor = model.parameters.back()});
    }
    model.reference.emplace(reference);
    model.inner = std::make_shared<torch::optim::SGD>(model.parameters, options_of_moves());
  }
  make_reducers();
}

void MovesRun::make_reducers() {
  for (Model& model : models_) {
    model.reducer = std::make_shared<Reducer>(model.named, communicator_.duplicate("moves"),
                                              ReducerOptions{.buckets = program_.buckets, .policy = program_.policy});
    model.optimizer.emplace(model.inner, model.reducer);
  }
  if (!program_.parts) return;
  const std::vector<std::shared_ptr<Reducer>> parts{models_[0].reducer, models_[1].reducer};
  for (const Model& model : models_) model.reducer->set_parts(parts);
}

std::string MovesRun::run() {
  for (std::size_t i = 0; i < program_.iterations.size(); ++i) {
    const std::string wrong = run_iteration(program_.iterations[i]);
    // A failure of one rank ends the program on all ranks.
    for (const std::string& of_rank : status_.all_gather_object(wrong)) {
      if (!of_rank.empty()) return "iteration " + std::to_string(i) + ": " + of_rank;
    }
  }
  return "";
}

std::string MovesRun::run_iteration(const std::vector<Move>& moves) {
  must_fail_ = may_fail_ = false;
  scope_ = nullptr;
  std::string error;
  try {
    for (std::size_t next = 0; next < moves.size();) next = run_from(moves, next);
  } catch (const TimeoutError& timeout) {
    return std::string("a timeout: ") + timeout.what();
  } catch (const std::exception& caught) {
    error = caught.what();
    recover();  // notifies ranks that wait for this rank
  }
  const auto errors = status_.all_gather_object(error);
  std::string all;
  bool some = false;
  bool every = true;
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    (errors[rank].empty() ? every : some) = errors[rank].empty() ? false : true;
    all += " [" + std::to_string(rank) + "] " + (errors[rank].empty() ? "no error" : errors[rank]);
  }
  if (!found_.empty()) return found_;
  if (some && !every) return "an error that not all ranks had:" + all;
  if (every && !must_fail_ && !may_fail_) return "an error that nothing explains:" + all;
  if (!every && must_fail_) return "moves that must be refused were not";
  ++(every ? refused_ : completed_);
  const std::string between = difference_between_ranks();
  if (!between.empty() || !every) return between.empty() ? difference() : between;
  for (Model& model : models_) model.reference->start_again(model.parameters);
  return "";
}

std::size_t MovesRun::run_from(const std::vector<Move>& moves, std::size_t first) {
  if (moves[first].verb == Verb::open && scope_ == nullptr) return run_scope(moves, first);
  run_move(moves[first]);
  return first + 1;
}

std::size_t MovesRun::run_scope(const std::vector<Move>& moves, std::size_t opening) {
  const Move& open = moves[opening];
  std::vector<AccumulateScope::Member> members;
  for (int m = 0; m < 2; ++m) {
    if (!open.members[m]) continue;
    members.push_back(
        {.reducer = models_[m].reducer, .step = {.weight = open.weights[status_.rank()], .syncs = open.last}});
    models_[m].reference->open(open.last);
  }
  std::size_t next = opening + 1;
  {
    const AccumulateScope scope(members);
    scope_ = &open;
    left_out_ = nullptr;
    passed_in_scope_ = false;
    came_.fill(false);
    while (next < moves.size() && moves[next].verb != Verb::close) next = run_from(moves, next);
    scope_ = nullptr;
  }
  for (int m = 0; m < 2; ++m) {
    if (!open.members[m]) continue;
    models_[m].reference->close();
    closed_early_[static_cast<std::size_t>(m)] = !open.last;
  }
  return next + 1;
}

void MovesRun::run_move(const Move& move) {
  Model& model = models_[move.model];
  // A rank that has skipped its pass may only enter that pass's synchronizations, for which its peers wait.
  const bool enters_the_sync = left_out_ != nullptr && takes_part(*left_out_, move.model) &&
                               !came_[static_cast<std::size_t>(move.model)] &&
                               (move.verb == Verb::step || move.verb == Verb::clip);
  if (one_is_absent() && move.verb != Verb::pass && !enters_the_sync) return;
  // Outside of scopes a rank without passes does not know that its peers wait.
  const bool uses = move.verb == Verb::step || move.verb == Verb::clip || move.verb == Verb::clip_behind;
  if (scope_ == nullptr && uses && model.reference->uneven()) return;
  // A step between the scopes of a window is an error, unless a pass or synchronize() has followed the last scope.
  if (!model.reference->in_scope() && uses && closed_early_[static_cast<std::size_t>(move.model)]) may_fail_ = true;
  switch (move.verb) {
    case Verb::open:
    case Verb::close:
      return;
    case Verb::pass:
      return run_pass(move);
    case Verb::step:
      came_[static_cast<std::size_t>(move.model)] = true;
      if (model.reference->refuses_step() && !passed_in_scope_) {
        if (program_.parts) return;  // ranks whose passes have not reached the part do not know
        must_fail_ = true;
      }
      model.optimizer->step();
      model.reference->step();
      return;
    case Verb::zero:
      return zero(move);
    case Verb::zero_behind:
      return zero_behind(move);
    case Verb::clip:
      return clip(move);
    case Verb::clip_behind:
      return clip_behind(move);
    case Verb::replace:
      return replace(move);
    case Verb::keep:
      return keep(move);
    case Verb::synchronize:
      model.reducer->synchronize();
      return model.reference->synchronized();
    case Verb::discard:
      model.reducer->discard_accumulation();
      model.reference->discard();
      return record_released_gradients();
    case Verb::resume:
      return resume();
  }
}

bool MovesRun::takes_part(const Move& pass, int model) const {
  return joins() || reaches(program_, pass, model);
}

bool MovesRun::joins() const {
  return program_.parts && models_[0].reference->in_scope() == models_[1].reference->in_scope();
}

bool MovesRun::one_is_absent() const {
  // A pass that reaches a model outside of the model's scopes must reach it on all ranks. A rank that skipped its pass
  // in an earlier scope of the window does not know which passes outside of scopes are errors.
  return scope_ != nullptr && scope_->absent >= 0 && scope_->last && scope_->members[0] && scope_->members[1];
}

int MovesRun::times(const Move& pass) const {
  // A rank that skipped two passes would enter one synchronization where its peers enter two.
  return pass.twice && !one_is_absent() ? 2 : 1;
}

Mean MovesRun::mean_after(const Move& pass, int model) const {
  if (models_[model].reference->in_scope()) return scope_->last && !pass.no_sync ? Mean::yes : Mean::no;
  if (pass.no_sync) return Mean::no;
  return program_.policy == SyncPolicy::automatic ? Mean::perhaps : Mean::yes;
}

void MovesRun::run_pass(const Move& pass) {
  const bool absent = one_is_absent();
  if (absent && left_out_ != nullptr) return;
  // Ranks that do not reach a part in a scope's pass without synchronization do not take part in its zero_grad().
  const bool is_one_sided = scope_ != nullptr && scope_->last && pass.no_sync;
  if (!pass.parts.empty() && (is_one_sided || !joins())) return;
  // A rank that skipped a pass has counted fewer passes over all parts.
  if (joins() && scope_ == nullptr && (models_[0].reference->uneven() || models_[1].reference->uneven())) return;
  if (pass.model == 0 && models_[1].reference->in_scope() && cleared_behind_[1]) return;
  for (int m = 0; m < 2; ++m) {
    if (takes_part(pass, m)) cleared_behind_[static_cast<std::size_t>(m)] = false;
  }
  if (absent) left_out_ = &pass;
  const int rank = status_.rank();
  bool synchronizes = true;
  bool refused = false;
  for (int m = 0; m < 2; ++m) {
    if (takes_part(pass, m)) synchronizes = synchronizes && mean_after(pass, m) == Mean::yes;
    if (reaches(program_, pass, m)) refused = refused || models_[m].reference->refuses_pass();
  }
  // Ranks whose passes have not reached the refusing model learn it from a synchronization only.
  if (refused && program_.parts && !synchronizes) return;
  const bool explodes = pass.explosion != Explosion::none && !absent;
  must_fail_ = must_fail_ || refused || explodes;
  if (!refused && absent && rank == scope_->absent) return record_pass(pass);

  // In a pass without synchronization, one rank's exception would reach the peers only at the step. All ranks throw
  // then.
  const bool alone = pass.explosion == Explosion::on_one && synchronizes && !refused;
  const bool here = explodes && (!alone || rank == static_cast<int>(pass.seed % program_.ranks));
  std::optional<NoSyncScope> quiet;
  if (pass.no_sync) quiet.emplace(std::vector{models_[0].reducer, models_[1].reducer});
  const at::Tensor anchor = at::zeros({}, at::kDouble).requires_grad_();
  at::Tensor loss = here ? Bomb::apply(anchor) : anchor * 0;
  loss = loss + loss_of(program_, pass, rank, parameters(), pass.nested);
  for (int time = 0; time < times(pass); ++time) {
    try {
      loss.backward({}, /*retain_graph=*/time + 1 < times(pass));
    } catch (...) {
      // Accelerator::backward() makes the same call.
      for (Model& model : models_) model.reducer->on_backward_error();
      throw;
    }
  }
  record_pass(pass);
}

void MovesRun::record_pass(const Move& pass) {
  const auto all = reference_parameters();
  std::vector<at::Tensor> sums(all.size());
  std::vector<bool> present(program_.ranks, true);
  if (one_is_absent()) present[scope_->absent] = false;
  for (int rank = 0; rank < program_.ranks; ++rank) {
    if (!present[rank]) continue;
    const auto gradients = torch::autograd::grad({loss_of(program_, pass, rank, all, false)}, all, {}, false, false,
                                                 /*allow_unused=*/true);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (gradients[i].defined()) sums[i] = sums[i].defined() ? sums[i] + gradients[i] : gradients[i];
    }
  }
  for (int m = 0; m < 2; ++m) {
    ReferenceModel& reference = *models_[m].reference;
    std::vector<double> weights(program_.ranks);
    for (int rank = 0; rank < program_.ranks; ++rank) {
      if (reference.in_scope() && present[rank]) weights[rank] = scope_->weights[rank];
    }
    passed_in_scope_ = passed_in_scope_ || (reference.in_scope() && reaches(program_, pass, m));
    if (!reaches(program_, pass, m)) {
      if (reference.in_scope() && models_[1 - m].reference->in_scope()) reference.weigh(weights);
      continue;
    }
    ReferenceModel::Gradients own;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (program_.parameters[i].model != m) continue;
      own.push_back(sums[i].defined() && !reference.in_scope() ? sums[i] / program_.ranks : sums[i]);
    }
    for (int time = 0; time < times(pass); ++time) reference.pass(own, weights, mean_after(pass, m));
  }
}

void MovesRun::zero(const Move& move) {
  Model& model = models_[move.model];
  const bool in_place = move.in_place && !model.reference->uneven();
  model.optimizer->zero_grad(!in_place);
  model.reference->zero(in_place);
  record_released_gradients();
}

void MovesRun::zero_behind(const Move& move) {
  Model& model = models_[move.model];
  // Ranks that have not used the part would not notice.
  if (program_.parts && !model.reference->empty()) return;
  // The reducer cannot tell zeros in place of a mean from a change that the program made.
  const bool is_clearing =
      model.reference->empty() || (!model.reference->weighted() && model.reference->mean() == Mean::no);
  const bool in_place = move.in_place && is_clearing;
  cleared_behind_[static_cast<std::size_t>(move.model)] = !model.reference->empty();
  model.inner->zero_grad(!in_place);
  model.reference->zero_behind(in_place);
  record_released_gradients();
}

void MovesRun::clip(const Move& move) {
  Model& model = models_[move.model];
  if (!model.reference->at_window_end()) return;
  model.reducer->prepare_step();
  model.reference->synchronized();
  const double most = 0.1 * static_cast<double>(1 + move.seed % 5);
  clip_grad_norm(model.parameters, most);
  const double factor = most / (model.reference->norm() + 1e-6);
  if (factor < 1) model.reference->scale(factor);
}

void MovesRun::clip_behind(const Move& move) {
  Model& model = models_[move.model];
  // The program may change a mean, also before a synchronization that adds a scope's weight to it.
  if (!model.reference->at_window_end() || model.reference->lacks_weight()) return;
  // If the gradients are not the mean yet, the step is an error, unless they have the mean's values by chance. The
  // limit is small then, because clipping that changes nothing would not be noticed.
  const bool sure = model.reference->mean() == Mean::yes;
  may_fail_ = may_fail_ || !sure;
  const double most = sure ? 0.1 * static_cast<double>(1 + move.seed % 5) : 1e-6;
  torch::nn::utils::clip_grad_norm_(model.parameters, most);
  model.optimizer->step();
  const double factor = most / (model.reference->norm() + 1e-6);
  if (factor < 1) model.reference->scale(factor);
  model.reference->step();
}

void MovesRun::replace(const Move& move) {
  Model& model = models_[move.model];
  if (model.reference->mean() != Mean::yes || model.reference->empty()) return;
  for (const at::Tensor& parameter : model.parameters) {
    if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad() * 0.5;
  }
  model.reference->scale(0.5);
  record_released_gradients();
}

void MovesRun::keep(const Move& move) {
  const Model& model = models_[move.model];
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const at::Tensor& gradient = model.parameters[i].grad();
    if (gradient.defined()) held_.push_back({.model = move.model, .parameter = i, .handle = gradient});
  }
}

void MovesRun::resume() {
  if (scope_ != nullptr) return;
  std::vector<StateDict> states;
  for (Model& model : models_) {
    states.push_back(copy_to_cpu(model.reducer->state_dict()));
    model.optimizer.reset();
    model.reducer.reset();
    for (const at::Tensor& parameter : model.parameters) parameter.mutable_grad().reset();
  }
  record_released_gradients();
  make_reducers();
  for (std::size_t m = 0; m < models_.size(); ++m) models_[m].reducer->load_state_dict(states[m]);
}

void MovesRun::record_released_gradients() {
  for (Held& held : held_) {
    if (held.values.defined()) continue;
    const at::Tensor& now = models_[held.model].parameters[held.parameter].grad();
    if (!now.defined() || !now.is_same(held.handle)) held.values = held.handle.clone();
  }
}

void MovesRun::recover() {
  for (Model& model : models_) model.optimizer->zero_grad();
  record_released_gradients();
}

std::vector<at::Tensor> MovesRun::parameters() const {
  std::vector<at::Tensor> all = models_[0].parameters;
  all.insert(all.end(), models_[1].parameters.begin(), models_[1].parameters.end());
  return all;
}

std::vector<at::Tensor> MovesRun::reference_parameters() const {
  std::vector<at::Tensor> all = models_[0].reference->parameters();
  const auto& more = models_[1].reference->parameters();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace tutti::test
