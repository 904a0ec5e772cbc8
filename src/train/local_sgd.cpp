#include "tutti/train/local_sgd.h"

#include <algorithm>
#include <ranges>
#include <string>
#include <utility>

#include "sync/check_same_model.h"
#include "train/accelerator_state.h"
#include "train/replicate_optimizer.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti {

namespace {

LocalSgdAlgorithmOptions algorithm_options(const LocalSGDOptions& options) {
  LocalSgdAlgorithmOptions algorithm = options.algorithm;
  if (algorithm.local_steps != LocalSgdAlgorithmOptions{}.local_steps &&
      algorithm.local_steps != options.local_sgd_steps) {
    throw UsageError("LocalSGD: local_sgd_steps is " + std::to_string(options.local_sgd_steps) +
                     " and algorithm.local_steps is " + std::to_string(algorithm.local_steps) + ": set the first only");
  }
  algorithm.local_steps = options.local_sgd_steps;
  return algorithm;
}

/// Throws UsageError for options that need the optimizer.
void refuse_without_optimizer(const LocalSgdAlgorithmOptions& options) {
  if (options.outer_optimizer == OuterOptimizer::slowmo) {
    throw UsageError("LocalSGD: SlowMo needs one prepared optimizer for all trainable parameters of the model");
  }
  if (options.state_sync.momentum == MomentumRule::average) {
    throw UsageError(
        "LocalSGD: MomentumRule::average needs one prepared optimizer for all trainable parameters of the model");
  }
}

}  // namespace

/// The algorithm's state, and whether ranks take local steps now.
class LocalSGD::SavedPart final : public Stateful {
 public:
  explicit SavedPart(LocalSGD& of) : local_sgd_(of) {}
  StateDict state_dict() const override {
    StateDict state;
    state.set("algorithm", local_sgd_.algorithm_->state_dict());
    state.set("steps_before", local_sgd_.steps_before_);
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    const auto& steps_before = state.get<std::vector<std::int64_t>>("steps_before");
    if (steps_before.size() != local_sgd_.reducers_.size()) {
      throw CheckpointError("the saved local steps are of " + std::to_string(steps_before.size()) +
                            " optimizers and models without one, this program has " +
                            std::to_string(local_sgd_.reducers_.size()));
    }
    const StateDict before = copy_to_cpu(local_sgd_.algorithm_->state_dict());
    local_sgd_.algorithm_->load_state_dict(state.part("algorithm"));
    try {
      local_sgd_.set_local(!local_sgd_.algorithm_->synchronous());
    } catch (const UsageError&) {
      local_sgd_.algorithm_->load_state_dict(before);
      throw;
    }
    local_sgd_.steps_before_ = steps_before;
    local_sgd_.ended_windows_ = local_sgd_.ended_windows();
  }

 private:
  LocalSGD& local_sgd_;
};

LocalSGD::LocalSGD(Accelerator& accelerator, detail::ModelRef model, const LocalSGDOptions& options)
    : accelerator_(accelerator), reducers_(accelerator.state_->reducers_of({model})) {
  if (!options.enabled) return;
  const Accelerator::State& state = *accelerator.state_;
  if (state.loader_stack->tail(/*even_batches=*/false) == EpochTail::join) {
    throw UsageError(
        "LocalSGD in join_uneven_inputs(): a local step is the mean of one rank's batches and has no filler batches. "
        "End the scope first, or pass even_batches = true to it");
  }
  std::vector<NamedParameter> parameters = named_parameters_of(*model);
  std::erase_if(parameters, [&state](const NamedParameter& one) { return state.is_ignored(one.tensor); });
  for (const Accelerator::State::PreparedReducer& one : state.reducers) {
    if (one.ignored) std::erase(reducers_, one.reducer);
  }
  // The inner optimizer, if one optimizer trains the whole model.
  if (reducers_.size() == 1) {
    for (const Optimizer& optimizer : accelerator.state_->optimizers) {
      if (optimizer.reducer() == reducers_.front()) optimizer_ = std::make_shared<Optimizer>(optimizer);
    }
  }
  if (!optimizer_) refuse_without_optimizer(options.algorithm);
  std::shared_ptr<torch::optim::Optimizer> inner;
  if (optimizer_) inner = {optimizer_, &optimizer_->inner()};
  algorithm_ = std::make_shared<LocalSgdAlgorithm>(parameters, sync::named_buffers_of(*model), inner,
                                                   accelerator.state_->communicator.duplicate("local_sgd"),
                                                   algorithm_options(options));
  for (const auto& reducer : reducers_) steps_before_.push_back(reducer->steps());
  ended_windows_ = ended_windows();
  if (!algorithm_->synchronous()) begin_local_steps();
  saved_ = std::make_shared<SavedPart>(*this);
  accelerator.state_->per_rank.push_back({.name = model->name(), .object = saved_});
}

LocalSGD::~LocalSGD() noexcept(false) {
  if (!algorithm_) return;
  std::erase_if(accelerator_.state_->per_rank, [this](const auto& entry) { return entry.object == saved_; });
  if (std::uncaught_exceptions() == exceptions_) {
    finish({});
    return;
  }
  for (const auto& reducer : reducers_) {
    reducer->refuse_passes(Accelerator::State::refusal_after_local_sgd("a backward pass").what());
  }
}

std::int64_t LocalSGD::optimizer_steps() const {
  std::int64_t steps = 0;
  for (std::size_t i = 0; i < reducers_.size(); ++i) steps = std::max(steps, reducers_[i]->steps() - steps_before_[i]);
  return steps;
}

std::int64_t LocalSGD::ended_windows() const {
  std::int64_t windows = 0;
  for (const auto& reducer : reducers_) windows = std::max(windows, reducer->ended_windows());
  return windows;
}

bool LocalSGD::left_out_step() const {
  if (ended_windows() == ended_windows_) return false;
  return std::ranges::none_of(reducers_, [this](const auto& reducer) {
    return accelerator_.state_->has_optimizer(reducer) && reducer->has_unused_passes() &&
           !(reducer->local() && reducer->last_scope_has_no_pass());
  });
}

void LocalSGD::discard_unused_passes() {
  for (const auto& reducer : reducers_) {
    if (reducer->local() && reducer->has_unused_passes()) reducer->discard_accumulation();
  }
}

void LocalSGD::step(double weight, const CallSite& where) {
  const CallSiteScope here(where);
  if (std::exchange(warns_of_step_, false) && accelerator_.is_main_process()) {
    accelerator_.logger().warning(
        "LocalSGD: step() after finish() has no effect, because every step synchronizes gradients again. To go on with "
        "local steps, construct another LocalSGD");
  }
  if (!algorithm_) return;
  // Without either, the call follows a micro-batch before the last one of its window.
  if (optimizer_steps() == algorithm_->stats().steps) {
    if (!left_out_step()) return;
    discard_unused_passes();
  }
  ended_windows_ = ended_windows();
  const bool was_synchronous = algorithm_->synchronous();
  algorithm_->step(weight, optimizer_ ? optimizer_->last_step_rates() : std::vector<double>());
  // A window may have taken several optimizer steps or none. The call counts once.
  const std::int64_t surplus = optimizer_steps() - algorithm_->stats().steps;
  for (std::int64_t& before : steps_before_) before += surplus;
  if (was_synchronous && !algorithm_->synchronous()) begin_local_steps();
}

void LocalSGD::finish(const CallSite& where) {
  const CallSiteScope here(where);
  if (!algorithm_) return;
  for (const auto& reducer : reducers_) {
    reducer->discard_unused_passes();  // throws before ranks communicate
    accelerator_.state_->scopes[reducer.get()].restart_window();
  }
  algorithm_->finish();
  set_local(false);
  replicate_step_counts();
  replicate_optimizers();
  replicate_scale_and_schedules();
  last_stats_ = algorithm_->stats();
  warns_of_step_ = true;
  std::erase_if(accelerator_.state_->per_rank, [this](const auto& entry) { return entry.object == saved_; });
  algorithm_.reset();
}

void LocalSGD::begin_local_steps() {
  // A pass of another model's step (the generator's through the discriminator) leaves gradients that no step uses.
  const std::int64_t steps = optimizer_steps();
  for (std::size_t i = 0; i < reducers_.size(); ++i) {
    const bool has_stepped = steps > 0 && reducers_[i]->steps() - steps_before_[i] == steps;
    if (has_stepped || !accelerator_.state_->has_optimizer(reducers_[i])) reducers_[i]->discard_unused_passes();
  }
  set_local(true);
}

void LocalSGD::set_local(bool local) {
  const auto changes = [local](const auto& reducer) { return reducer->local() != local; };
  if (std::ranges::none_of(reducers_, changes)) return;
  for (const auto& reducer : reducers_ | std::views::filter(changes)) reducer->require_between_steps();
  for (const auto& reducer : reducers_) reducer->set_local(local);
  accelerator_.state_->compare_parameters_without_optimizer();
}

void LocalSGD::replicate_step_counts() {
  // Ranks may have taken different numbers of local steps. From here on all ranks count as rank 0 does.
  for (const auto& reducer : reducers_) {
    const at::Tensor steps = at::scalar_tensor(reducer->steps(), at::kLong);
    accelerator_.state_->prepare_communicator.broadcast(steps, 0, comm::internal_call("local_sgd")).wait();
    reducer->set_steps(steps.item<std::int64_t>());
  }
}

void LocalSGD::replicate_optimizers() {
  // Momentum differs between ranks after local steps, so replicas would differ after one more step.
  for (Optimizer& optimizer : accelerator_.state_->optimizers) {
    if (std::ranges::find(reducers_, optimizer.reducer()) == reducers_.end()) continue;
    const auto is_ignored = [this](const at::Tensor& one) { return accelerator_.state_->is_ignored(one); };
    replicate_optimizer(optimizer.inner(), accelerator_.state_->prepare_communicator, is_ignored);
  }
}

void LocalSGD::replicate_scale_and_schedules() {
  // Ranks may have skipped different steps. From here on all ranks use the scale and schedules of rank 0.
  const Accelerator::State& prepared = *accelerator_.state_;
  const auto agree = [this](Stateful& object, const std::vector<std::string>& names) {
    StateDict state = object.state_dict();
    for (const std::string& name : names) {
      if (!state.contains(name)) continue;
      const bool whole = std::holds_alternative<std::int64_t>(state.values().at(name));
      const double of_this_rank = whole ? static_cast<double>(state.get<std::int64_t>(name)) : state.get<double>(name);
      const at::Tensor value = at::scalar_tensor(of_this_rank, at::kDouble);
      accelerator_.state_->prepare_communicator.broadcast(value, 0, comm::internal_call("local_sgd")).wait();
      if (whole) {
        state.set(name, static_cast<std::int64_t>(value.item<double>()));
      } else {
        state.set(name, value.item<double>());
      }
    }
    object.load_state_dict(state);
  };
  if (prepared.scaler) agree(*prepared.scaler, {"scale", "_growth_tracker"});
  for (const auto& scheduler : prepared.schedulers) agree(*scheduler.object, {"position", "applied_position"});
}

}  // namespace tutti
