#include "sync/random_program_run.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/detail/sync/sync_scopes.h"

namespace tutti::test {

namespace {

bool is_zero(const at::Tensor& gradient) {
  return !gradient.defined() || !gradient.any().item<bool>();
}

/// The exception of a program's own faults.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

struct NestedUse {
  at::Tensor parameter;
  at::Tensor gradient;
};

/// Reaches a parameter in a nested backward pass.
struct Nested : torch::autograd::Function<Nested> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& anchor, const NestedUse& use) {
    context->saved_data["parameter"] = use.parameter;
    context->saved_data["gradient"] = use.gradient;
    return anchor * 0 + 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const at::Tensor parameter = context->saved_data["parameter"].toTensor();
    const at::Tensor gradient = context->saved_data["gradient"].toTensor();
    const at::AutoGradMode enable(true);
    (parameter * gradient).sum().to(at::kDouble).backward(grads[0]);
    return {at::zeros_like(grads[0]), at::Tensor()};
  }
};

struct Explosive : torch::autograd::Function<Explosive> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& anchor) { return anchor * 0; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw Interrupted();
  }
};

/// Index of the use at which a failing pass throws. Backward runs from the last use to the first, and every optimizer's
/// reducer must have noticed the pass before, unless they are parts of one model.
std::size_t explosion_of(const Program& program, const std::vector<Use>& uses) {
  std::size_t latest = uses.size() - 1;
  for (int o = 0; o < program.optimizers && !program.parts; ++o) {
    const auto last_use = std::ranges::find(
        uses.rbegin(), uses.rend(), o, [&](const Use& use) { return program.parameters[use.parameter].optimizer; });
    if (last_use != uses.rend()) latest = std::min<std::size_t>(latest, uses.rend() - last_use - 1);
  }
  return program.seed / 7 % (latest + 1);
}

}  // namespace

ProgramRun::ProgramRun(const Program& program, const Communicator& communicator)
    : program_(program),
      communicator_(communicator),
      one_process_(program),
      reducers_(program.optimizers),
      stepped_(program.optimizers, false),
      empty_(program.optimizers, true),
      last_syncs_(program.optimizers, 0) {
  for (std::size_t i = 0; i < program.parameters.size(); ++i) {
    const ProgramParameter& kind = program.parameters[i];
    at::Tensor values = random_integers(kind.shape, program.seed + i).to(kind.dtype);
    if (kind.transposed) values = values.t().contiguous().t();
    parameters_.push_back(values.requires_grad_(!kind.frozen));
  }
  for (int o = 0; o < program.optimizers; ++o) {
    std::vector<at::Tensor> own;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (program.parameters[i].optimizer == o) own.push_back(parameters_[i]);
    }
    inner_.push_back(std::make_shared<torch::optim::SGD>(own, program.learning_rate));
    make_reducer(o);
    optimizers_.emplace_back(inner_[o], reducers_[o]);
  }
  connect_parts();
}

void ProgramRun::connect_parts() {
  if (!program_.parts) return;
  for (const auto& reducer : reducers_) reducer->set_parts(reducers_);
}

void ProgramRun::make_reducer(int optimizer) {
  std::vector<NamedParameter> own;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    std::string name = "p";
    name += std::to_string(i);
    if (program_.parameters[i].optimizer == optimizer) own.push_back({.name = name, .tensor = parameters_[i]});
  }
  // All ranks run the same scopes, so that they are at the same batch of a loader.
  ReducerOptions options{.buckets = program_.buckets, .policy = program_.policy, .batch_position = [this] {
                           return BatchPosition{.loader = 0,
                                                .epoch = static_cast<std::int64_t>(window_),
                                                .batch = static_cast<std::int64_t>(scope_)};
                         }};
  // A program that continues from a saved state may use other bucket sizes.
  if (reducers_made_++ % 2 == 1) std::swap(options.buckets.first_bucket_bytes, options.buckets.bucket_bytes);
  reducers_[optimizer] = std::make_shared<Reducer>(own, communicator_.duplicate("program"), options);
}

void ProgramRun::run() {
  for (window_ = 0; window_ < program_.windows.size(); ++window_) {
    const ProgramWindow& window = program_.windows[window_];
    for (int o = 0; o < program_.optimizers; ++o) {
      if (reducers_[o]->local() == window.local) continue;
      reducers_[o]->set_local(window.local);
      one_process_.clear(o, true);
      stepped_[o] = false;
    }
    for (int o = 0; o < program_.optimizers; ++o) clear(o, window.zero_before[o]);
    run_window(window);
    check_parameters();
    if (testing::Test::HasFailure()) return;
  }
}

void ProgramRun::run_window(const ProgramWindow& window) {
  try {
    for (std::size_t i = 0; i < window.scopes.size(); ++i) {
      try {
        if (fails_here(window, i, Fault::Where::between)) throw Interrupted();
        run_interlude(window, window.scopes[i].before);
        run_scope(window, i);
      } catch (const Interrupted&) {
        if (!window.fault->swallowed) throw;
      }
    }
    if (!window.step_in_scopes) finish(window, window.steps);
  } catch (const std::exception& error) {
    const bool expected = window.fault && window.fault->loses_window;
    const auto is = [&]<typename Exception>(std::type_identity<Exception>) {
      return dynamic_cast<const Exception*>(&error) != nullptr;
    };
    const bool told = is(std::type_identity<Interrupted>()) || is(std::type_identity<PeerError>()) ||
                      is(std::type_identity<UsageError>());
    if (!expected || !told) throw;
    clear_after_fault();
    return;
  }
  EXPECT_FALSE(window.fault && window.fault->loses_window) << "window " << window_ << " did not notice its fault";
}

void ProgramRun::run_scope(const ProgramWindow& window, std::size_t index) {
  const ProgramScope& scope = window.scopes[index];
  scope_ = index;
  if (!window.weighted) {
    run_passes(window, index);
    return;
  }
  const bool last = index + 1 == window.scopes.size();
  std::vector<AccumulateScope::Member> members;
  for (int o = 0; o < program_.optimizers; ++o) {
    members.push_back({.reducer = reducers_[o],
                       .step = {.weight = scope.weights[communicator_.rank()],
                                .syncs = last && window.steps[o],
                                .sync_each_batch = window.sync_each_batch}});
  }
  const AccumulateScope accumulating(members);
  if (window.zero_first) {
    for (int o = 0; o < program_.optimizers; ++o) {
      optimizers_[o].zero_grad();
      if (stepped_[o] || empty_[o]) one_process_.clear(o, true);
      stepped_[o] = false;
    }
  }
  run_passes(window, index);
  if (!window.step_in_scopes) return;
  std::vector<bool> steps;
  for (const auto& reducer : reducers_) steps.push_back(reducer->at_window_end());
  finish(window, steps);
}

void ProgramRun::run_passes(const ProgramWindow& window, std::size_t index) {
  const ProgramScope& scope = window.scopes[index];
  std::fill(empty_.begin(), empty_.end(), false);
  // The reference runs first, also on ranks that skip the passes.
  if (window.weighted) one_process_.weigh(scope);
  for (const ProgramPass& pass : scope.passes) one_process_.pass(scope, pass, window.weighted);
  for (const auto& reducer : reducers_) reducer->set_loss_scale(scope.passes[0].loss_scale);
  if (fails_here(window, index, Fault::Where::before_backward)) throw Interrupted();
  if (!scope.present[communicator_.rank()]) return;
  for (const ProgramPass& pass : scope.passes) {
    run_pass(pass, fails_here(window, index, Fault::Where::in_backward));
  }
}

void ProgramRun::run_pass(const ProgramPass& pass, bool fails) {
  std::fill(stepped_.begin(), stepped_.end(), false);
  const std::vector<Use>& uses = pass.uses[communicator_.rank()];
  const at::Tensor anchor = at::zeros({}, at::kDouble).requires_grad_();
  std::vector<at::Tensor> losses(pass.two_losses ? 2 : 1, anchor * 0);
  const std::size_t explosion = fails ? explosion_of(program_, uses) : uses.size();
  for (std::size_t i = 0; i < uses.size(); ++i) {
    at::Tensor& loss = losses[i % losses.size()];
    if (i == explosion) loss = loss + Explosive::apply(anchor);
    loss = loss + loss_of(uses[i], anchor);
  }
  for (at::Tensor& loss : losses) loss = loss * pass.loss_scale;

  std::optional<NoSyncScope> quiet;
  if (pass.no_sync) quiet.emplace(reducers_);
  for (int o = 0; o < program_.optimizers; ++o) {
    if (pass.trigger) reducers_[o]->trigger_sync_in_backward();
    reducers_[o]->set_loss_scale(pass.loss_scale);
    last_syncs_[o] = reducers_[o]->stats().syncs;
  }
  try {
    torch::autograd::backward(losses);
  } catch (...) {
    // The Accelerator makes this call; a plain loop does not.
    for (const auto& reducer : reducers_) {
      if (program_.seed % 2 == 0) reducer->on_backward_error();
    }
    throw;
  }
  for (const auto& reducer : reducers_) reducer->add_scope_weight();
}

at::Tensor ProgramRun::loss_of(const Use& use, const at::Tensor& anchor) {
  const at::Tensor& parameter = parameters_[use.parameter];
  const auto part = [&](std::uint64_t seed) { return random_integers(parameter.sizes(), seed).to(parameter.dtype()); };
  if (use.reach == Reach::nested) return Nested::apply(anchor, NestedUse{parameter, part(use.seed)});
  at::Tensor loss = (parameter * part(use.seed)).sum().to(at::kDouble);
  if (use.reach == Reach::twice) loss = loss + (parameter * part(use.seed + 1)).sum().to(at::kDouble);
  return loss;
}

void ProgramRun::run_interlude(const ProgramWindow& window, Interlude interlude) {
  if (interlude == Interlude::evaluate) evaluate();
  if (interlude == Interlude::save_and_load) save_and_load();
  for (int o = 0; o < program_.optimizers; ++o) {
    if (interlude == Interlude::synchronize) reducers_[o]->synchronize();
    if (interlude == Interlude::discard) clear(o, window.prepares_clipping ? Zeroing::to_none : Zeroing::in_place);
  }
}

void ProgramRun::evaluate() {
  for (const at::Tensor& parameter : parameters_) {
    {
      const at::NoGradGuard no_grad;
      (parameter * parameter).sum();
    }
    if (parameter.requires_grad()) torch::autograd::grad({(parameter * parameter).sum()}, {parameter});
  }
}

void ProgramRun::save_and_load() {
  for (int o = 0; o < program_.optimizers; ++o) {
    const StateDict state = copy_to_cpu(reducers_[o]->state_dict());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (program_.parameters[i].optimizer == o) parameters_[i].mutable_grad().reset();
    }
    optimizers_[o] = Optimizer(inner_[o], nullptr);
    make_reducer(o);
    reducers_[o]->load_state_dict(state);
    optimizers_[o] = Optimizer(inner_[o], reducers_[o]);
  }
  connect_parts();
}

void ProgramRun::finish(const ProgramWindow& window, const std::vector<bool>& steps) {
  for (int o = 0; o < program_.optimizers; ++o) {
    if (!steps[o]) continue;
    if (window.weighted) one_process_.complete(o);
    if (window.clipping != Clipping::none && !window.fault) halve_gradients(window, o);
  }
  for (int o = 0; o < program_.optimizers; ++o) {
    if (steps[o] || window.step_in_scopes) optimizers_[o].step();
    if (!steps[o]) continue;
    one_process_.step(o);
    check_gradients(o);
    stepped_[o] = true;
  }
  for (int o = 0; o < program_.optimizers; ++o) {
    if (steps[o]) {
      clear(o, window.zero_after[o]);
    } else if (window.step_in_scopes && !window.zero_first) {
      optimizers_[o].zero_grad();  // must not clear a window that has not been stepped
    }
  }
}

void ProgramRun::halve_gradients(const ProgramWindow& window, int optimizer) {
  const bool pending = !window.weighted && reducers_[optimizer]->stats().syncs == last_syncs_[optimizer];
  if (window.prepares_clipping || window.step_in_scopes) {
    reducers_[optimizer]->prepare_step();
  } else if (pending) {
    reducers_[optimizer]->synchronize();
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (program_.parameters[i].optimizer != optimizer || !gradient.defined()) continue;
    // Zeros of a window without gradients must not be replaced, because no synchronization has produced them.
    if (window.clipping == Clipping::in_place || is_zero(gradient)) {
      gradient.mul_(0.5);
    } else {
      gradient = gradient * 0.5;
    }
  }
  one_process_.halve(optimizer);
}

void ProgramRun::clear(int optimizer, Zeroing zeroing) {
  if (zeroing == Zeroing::never) return;
  const bool set_to_none = zeroing == Zeroing::to_none || zeroing == Zeroing::behind_the_back_to_none;
  if (zeroing == Zeroing::to_none || zeroing == Zeroing::in_place) {
    optimizers_[optimizer].zero_grad(set_to_none);
    one_process_.clear(optimizer, set_to_none);
    stepped_[optimizer] = false;
    empty_[optimizer] = true;
  } else {
    inner_[optimizer]->zero_grad(set_to_none);
    one_process_.clear_gradients(optimizer, set_to_none);
  }
}

void ProgramRun::clear_after_fault() {
  for (int o = 0; o < program_.optimizers; ++o) clear(o, Zeroing::to_none);
}

bool ProgramRun::fails_here(const ProgramWindow& window, std::size_t scope, Fault::Where where) const {
  return window.fault && window.fault->scope == scope && window.fault->where == where &&
         window.fault->rank.value_or(communicator_.rank()) == communicator_.rank();
}

void ProgramRun::check_gradients(int optimizer) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (program_.parameters[i].optimizer != optimizer) continue;
    std::string what = "gradient of p";
    what += std::to_string(i);
    const at::Tensor& actual = parameters_[i].grad();
    const at::Tensor& expected = one_process_.gradient(static_cast<int>(i));
    // A part that the window has used on no rank.
    if (program_.parts && is_zero(actual) && is_zero(expected)) continue;
    EXPECT_EQ(actual.defined(), expected.defined()) << what << ", window " << window_;
    if (actual.defined() && expected.defined()) check(what, actual, expected);
  }
}

void ProgramRun::check_parameters() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    std::string what = "p";
    what += std::to_string(i);
    check(what, parameters_[i].detach(), one_process_.parameter(static_cast<int>(i)));
  }
}

void ProgramRun::check(const std::string& what, const at::Tensor& actual, const at::Tensor& expected) const {
  const at::Tensor values = actual.to(at::kDouble);
  const bool equal = program_.exact ? at::equal(values, expected) : at::allclose(values, expected, 1e-5, 2e-4);
  EXPECT_TRUE(equal) << what << ", window " << window_ << ", rank " << communicator_.rank() << ":\n"
                     << values.reshape({-1}).slice(0, 0, 8) << "\nwhere one process has\n"
                     << expected.reshape({-1}).slice(0, 0, 8);
}

}  // namespace tutti::test
