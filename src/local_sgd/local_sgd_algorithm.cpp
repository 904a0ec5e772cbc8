#include "tutti/detail/local_sgd/local_sgd_algorithm.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "local_sgd/agreement.h"
#include "local_sgd/check_options.h"
#include "local_sgd/local_sgd_algorithm_impl.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti {

using local_sgd::DueActions;
using local_sgd::Fragment;
using local_sgd::MeanExchange;

namespace {

const LocalSgdAlgorithmOptions& checked(const LocalSgdAlgorithmOptions& options) {
  local_sgd::check_options(options);
  return options;
}

// Runs after the comparison between ranks, so that an unusable parameter on one rank does not leave the others waiting.
local_sgd::TrainedParameters checked_parameters(const std::vector<NamedParameter>& parameters,
                                                const std::vector<NamedParameter>& buffers,
                                                const LocalSgdAlgorithmOptions& options,
                                                const Communicator& communicator) {
  local_sgd::check_agreement(parameters, buffers, options, communicator);
  local_sgd::TrainedParameters trained(parameters);
  if (options.check_replicas) local_sgd::check_equal_values(trained, communicator);
  return trained;
}

}  // namespace

LocalSgdAlgorithm::Impl::Impl(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers,
                              std::shared_ptr<torch::optim::Optimizer> optimizer, Communicator communicator,
                              const LocalSgdAlgorithmOptions& options)
    : options_(checked(options)),
      parameters_(checked_parameters(parameters, buffers, options, communicator)),
      optimizer_(std::move(optimizer)),
      communicator_(std::move(communicator)),
      schedule_(options) {
  const at::NoGradGuard no_grad;
  if (options_.outer_optimizer == OuterOptimizer::slowmo) {
    if (!optimizer_) throw UsageError("Local SGD: SlowMo needs the optimizer, for its learning rate");
    inner_rates();
  }
  extra_state_.emplace(buffers, optimizer_, parameters_, options_.state_sync);
  const std::vector<std::int64_t> sizes = parameters_.sizes();
  auto plans = local_sgd::plan_fragments(sizes, options_.streaming.fragments);
  if (options_.node_sync_steps > 0) groups_.emplace(communicator_);
  for (local_sgd::FragmentPlan& plan : plans) {
    const std::int64_t elements = plan.elements;
    const Communicator& first_group = groups_ ? groups_->node() : communicator_;
    const auto bytes = elements * static_cast<std::int64_t>(sizeof(float));
    FragmentState& fragment_state = *fragments_.emplace_back(std::make_unique<FragmentState>(
        Fragment(std::move(plan), parameters_, options_,
                 comm::GradientCommunicator(first_group).allocate(bytes).view(at::kFloat))));
    if (!groups_) {
      fragment_state.exchange =
          std::make_unique<MeanExchange>(communicator_, elements, options_.wire, options_.message_bytes);
    } else if (groups_->inter_node()) {
      fragment_state.exchange = std::make_unique<MeanExchange>(
          *groups_->inter_node(), groups_->inter_node_shard(elements).length, options_.wire, options_.message_bytes);
    }
  }
}

LocalSgdAlgorithm::Impl::~Impl() {
  bool in_flight = false;
  for (const auto& fragment_state : fragments_) in_flight = in_flight || fragment_state->in_flight;
  if (!in_flight) return;
  if (std::uncaught_exceptions() > 0) local_sgd::abort_exchanges(communicator_);
  for (const auto& fragment_state : fragments_) {
    try {
      if (fragment_state->in_flight) fragment_state->work.wait();
    } catch (...) {
      // A destructor cannot report the error.
    }
  }
}

// After a failure the ranks may be at different steps, so every later call throws the same error.
template <typename Action>
void LocalSgdAlgorithm::Impl::run_checked(const Action& action) {
  const at::NoGradGuard no_grad;
  try {
    action();
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

/// The learning rate of each trained parameter for SlowMo; empty for other methods.
std::vector<double> LocalSgdAlgorithm::Impl::inner_rates() const {
  if (options_.outer_optimizer != OuterOptimizer::slowmo) return {};
  std::map<const c10::TensorImpl*, double> by_tensor;
  const auto& groups = optimizer_->param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const double rate = step_rates_.size() == groups.size() ? step_rates_[i] : groups[i].options().get_lr();
    for (const at::Tensor& parameter : groups[i].params()) by_tensor[parameter.unsafeGetTensorImpl()] = rate;
  }
  std::vector<double> rates;
  for (std::size_t i = 0; i < parameters_.count(); ++i) {
    const NamedParameter& parameter = parameters_[static_cast<int>(i)];
    const auto known = by_tensor.find(parameter.tensor.unsafeGetTensorImpl());
    if (known == by_tensor.end()) {
      throw UsageError("Local SGD: parameter '" + parameter.name +
                       "' is in no group of the optimizer, and SlowMo needs its learning rate");
    }
    rates.push_back(known->second);
  }
  return rates;
}

void LocalSgdAlgorithm::Impl::step(double weight, const std::vector<double>& step_rates) {
  if (failure_) std::rethrow_exception(failure_);
  if (!std::isfinite(weight) || weight < 0) {
    throw UsageError("Local SGD: the weight of a step must be finite and at least 0, not " + std::to_string(weight));
  }
  parameters_.check();
  if (options_.outer_optimizer == OuterOptimizer::slowmo) step_rates_ = step_rates;
  const DueActions due = schedule_.next();
  std::vector<double> rates;
  if (due.sends && !skips_exchange()) rates = inner_rates();
  run_checked([&] {
    rethrow_background_failures();
    schedule_.advance();
    ++stats_.steps;
    since_state_.add(weight);
    if (due.warms_up) {
      if (!due.ends_warmup) return;
      for (const auto& fragment_state : fragments_) fragment_state->fragment.set_anchor();
      return;
    }
    since_node_.add(weight);
    for (const auto& fragment_state : fragments_) {
      fragment_state->since_sent.add(weight);
      fragment_state->dirty = true;
    }
    if (skips_exchange()) return;
    if (due.inside_node) average_within_node();
    if (due.sends) send(*due.sends, rates);
    // No exchange is in flight if finish() ended the round early.
    if (due.applies && fragments_[static_cast<std::size_t>(*due.applies)]->in_flight) {
      apply(*due.applies, true);
      if (!local_sgd::streams(options_)) combine_extra_state();
    }
  });
}

void LocalSgdAlgorithm::Impl::average_within_node() {
  FragmentState& fragment_state = *fragments_.front();
  fragment_state.fragment.start_collect();
  const auto mean_inside = [this](const at::Tensor& flat, std::uint64_t check, local_sgd::ExchangeCost& cost) {
    local_sgd::ExchangeHeader local_header = header(local_sgd::ExchangeKind::inside_node);
    local_header.weight = since_node_.weight;
    local_header.check = check;
    groups_->node_mean(flat, local_header, options_.message_bytes, cost);
  };
  extra_state_->read(groups_->node());
  run([&](local_sgd::ExchangeCost& cost) {
    fragment_state.fragment.finish_collect();
    mean_inside(fragment_state.fragment.flat(), 0, cost);
    cost.bytes += extra_state_->combine(
        groups_->node(), [&](const at::Tensor& flat, std::uint64_t check) { mean_inside(flat, check, cost); });
  });
  extra_state_->write();
  fragment_state.fragment.apply_node_mean();
  since_node_ = {};
  ++stats_.node_rounds;
}

void LocalSgdAlgorithm::Impl::finish() {
  if (failure_) std::rethrow_exception(failure_);
  parameters_.check();
  const std::vector<double> rates = schedule_.warming_up() || skips_exchange() ? std::vector<double>() : inner_rates();
  run_checked([&] {
    if (!skips_exchange()) {
      rethrow_background_failures();
      require_all_in_finish();
      for (std::size_t i = 0; i < fragments_.size(); ++i) {
        if (fragments_[i]->in_flight) apply(static_cast<int>(i), true);
      }
      for (std::size_t i = 0; i < fragments_.size(); ++i) {
        if (!fragments_[i]->dirty) continue;
        send(static_cast<int>(i), rates);
        apply(static_cast<int>(i), false);
      }
      if (since_state_.steps > 0) combine_extra_state();
    }
    schedule_.restart();
  });
}

LocalSgdAlgorithm::LocalSgdAlgorithm(const std::vector<NamedParameter>& parameters,
                                     const std::vector<NamedParameter>& buffers,
                                     std::shared_ptr<torch::optim::Optimizer> optimizer, Communicator communicator,
                                     const LocalSgdAlgorithmOptions& options)
    : impl_(std::make_unique<Impl>(parameters, buffers, std::move(optimizer), std::move(communicator), options)) {}
LocalSgdAlgorithm::~LocalSgdAlgorithm() = default;

void LocalSgdAlgorithm::step(double weight, const std::vector<double>& rates) {
  impl_->step(weight, rates);
}
void LocalSgdAlgorithm::finish() {
  impl_->finish();
}
bool LocalSgdAlgorithm::synchronous() const {
  return impl_->synchronous();
}
LocalSgdStats LocalSgdAlgorithm::stats() const {
  return impl_->stats();
}
StateDict LocalSgdAlgorithm::state_dict() const {
  return impl_->state_dict();
}
void LocalSgdAlgorithm::load_state_dict(const StateDict& state) {
  impl_->load_state_dict(state);
}

}  // namespace tutti
