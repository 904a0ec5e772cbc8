#include "tutti/train/local_sgd.h"

#include <algorithm>
#include <string>
#include <utility>

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

std::vector<NamedParameter> named_buffers_of(const torch::nn::Module& module) {
  std::vector<NamedParameter> buffers;
  for (const auto& buffer : module.named_buffers()) buffers.push_back({.name = buffer.key(), .tensor = buffer.value()});
  return buffers;
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
    const auto steps_before = state.get<std::int64_t>("steps_before");
    local_sgd_.algorithm_->load_state_dict(state.part("algorithm"));
    local_sgd_.set_local(!local_sgd_.algorithm_->synchronous());
    local_sgd_.steps_before_ = steps_before;
  }

 private:
  LocalSGD& local_sgd_;
};

LocalSGD::LocalSGD(Accelerator& accelerator, detail::ModelRef model, const LocalSGDOptions& options)
    : accelerator_(accelerator), reducers_(accelerator.state_->reducers_of({model})) {
  if (!options.enabled) return;
  // The inner optimizer, if one optimizer trains the whole model.
  std::shared_ptr<torch::optim::Optimizer> inner;
  if (reducers_.size() == 1) {
    for (const Optimizer& optimizer : accelerator.state_->optimizers) {
      if (optimizer.reducer() != reducers_.front()) continue;
      const auto owner = std::make_shared<Optimizer>(optimizer);
      inner = {owner, &owner->inner()};
    }
  }
  algorithm_ = std::make_shared<LocalSgdAlgorithm>(named_parameters_of(*model), named_buffers_of(*model), inner,
                                                   accelerator.state_->communicator.duplicate("local_sgd"),
                                                   algorithm_options(options));
  steps_before_ = optimizer_steps();
  set_local(!algorithm_->synchronous());
  saved_ = std::make_shared<SavedPart>(*this);
  accelerator.state_->per_rank.push_back({.name = model->name(), .object = saved_});
}

LocalSGD::~LocalSGD() noexcept(false) {
  if (!algorithm_) return;
  std::erase_if(accelerator_.state_->per_rank, [this](const auto& entry) { return entry.object == saved_; });
  if (std::uncaught_exceptions() > exceptions_) return;
  finish({});
}

std::int64_t LocalSGD::optimizer_steps() const {
  std::int64_t steps = 0;
  for (const auto& reducer : reducers_) steps = std::max(steps, reducer->steps());
  return steps;
}

void LocalSGD::step(double weight, const CallSite& where) {
  const CallSiteScope here(where);
  if (!algorithm_) return;
  if (optimizer_steps() - steps_before_ == algorithm_->stats().steps)
    return;  // a micro-batch without an optimizer step
  algorithm_->step(weight);
  if (!algorithm_->synchronous()) set_local(true);
}

void LocalSGD::finish(const CallSite& where) {
  const CallSiteScope here(where);
  if (!algorithm_) return;
  algorithm_->finish();
  set_local(false);
  replicate_optimizers();
  replicate_scale_and_schedules();
  last_stats_ = algorithm_->stats();
  std::erase_if(accelerator_.state_->per_rank, [this](const auto& entry) { return entry.object == saved_; });
  algorithm_.reset();
}

void LocalSGD::set_local(bool local) {
  for (const auto& reducer : reducers_) {
    if (reducer->local() == local) continue;
    reducer->set_local(local);
    steps_before_ = -algorithm_->stats().steps;
  }
}

void LocalSGD::replicate_optimizers() {
  // Momentum differs between ranks after local steps, so replicas would differ after one more step.
  for (Optimizer& optimizer : accelerator_.state_->optimizers) {
    if (std::ranges::find(reducers_, optimizer.reducer()) == reducers_.end()) continue;
    replicate_optimizer(optimizer.inner(), accelerator_.state_->prepare_communicator);
  }
}

void LocalSGD::replicate_scale_and_schedules() {
  // Ranks may have skipped different steps. From here on all ranks use the scale and schedules of rank 0.
  const Accelerator::State& prepared = *accelerator_.state_;
  if (!prepared.scaler) return;
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
  agree(*prepared.scaler, {"scale", "_growth_tracker"});
  for (const auto& scheduler : prepared.schedulers) agree(*scheduler.object, {"position", "applied_position"});
}

}  // namespace tutti
