#include "tutti/local_sgd/local_update_engine.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "local_sgd/agreement.h"
#include "local_sgd/check_options.h"
#include "local_sgd/engine_impl.h"
#include "tutti/core/error.h"

namespace tutti {

using local_sgd::Fragment;
using local_sgd::MeanExchange;
using local_sgd::Turn;

namespace {

const LocalUpdateOptions& checked(const LocalUpdateOptions& options) {
  local_sgd::check_options(options);
  return options;
}

// After the comparison, so that a rank with an unusable parameter does not leave the others waiting.
local_sgd::TrainedParameters agreed(const std::vector<NamedParameter>& parameters,
                                    const std::vector<NamedParameter>& buffers, const LocalUpdateOptions& options,
                                    const Communicator& channel) {
  local_sgd::agree(parameters, buffers, options, channel);
  local_sgd::TrainedParameters trained(parameters);
  if (options.check_replicas) local_sgd::agree_on_values(trained, channel);
  return trained;
}

}  // namespace

LocalUpdateEngine::Impl::Impl(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers,
                              std::shared_ptr<torch::optim::Optimizer> optimizer, Communicator channel,
                              const LocalUpdateOptions& options)
    : options_(checked(options)),
      parameters_(agreed(parameters, buffers, options, channel)),
      optimizer_(std::move(optimizer)),
      channel_(std::move(channel)),
      timetable_(options) {
  const at::NoGradGuard no_grad;
  if (options_.method == OuterMethod::slowmo) {
    if (!optimizer_) throw UsageError("local updates: SlowMo needs the optimizer, for its learning rate");
    inner_rates();
  }
  side_state_.emplace(buffers, optimizer_, parameters_, options_.contract);
  const std::vector<std::int64_t> sizes = parameters_.sizes();
  auto plans = local_sgd::plan_fragments(sizes, options_.streaming.fragments);
  if (options_.steps_inside_node > 0) groups_.emplace(channel_);
  for (local_sgd::FragmentPlan& plan : plans) {
    const std::int64_t elements = plan.elements;
    const Communicator& meets_first = groups_ ? groups_->node() : channel_;
    const auto bytes = elements * static_cast<std::int64_t>(sizeof(float));
    Member& member = *members_.emplace_back(std::make_unique<Member>(
        Fragment(std::move(plan), parameters_, options_, meets_first.allocate(bytes).view(at::kFloat))));
    if (!groups_) {
      member.exchange = std::make_unique<MeanExchange>(channel_, elements, options_.wire, options_.message_bytes);
    } else if (groups_->across()) {
      member.exchange = std::make_unique<MeanExchange>(*groups_->across(), groups_->own_part(elements).length,
                                                       options_.wire, options_.message_bytes);
    }
  }
}

LocalUpdateEngine::Impl::~Impl() {
  bool under_way = false;
  for (const auto& member : members_) under_way = under_way || member->under_way;
  if (!under_way) return;
  if (std::uncaught_exceptions() > 0) local_sgd::abandon(channel_);
  for (const auto& member : members_) {
    try {
      if (member->under_way) member->work.wait();
    } catch (...) {
      // Nobody is left to tell.
    }
  }
}

// Whatever goes wrong between ranks leaves them at different places: nothing can follow.
template <typename Action>
void LocalUpdateEngine::Impl::guarded(const Action& action) {
  const at::NoGradGuard no_grad;
  try {
    action();
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

/// Of each trained parameter, for SlowMo; else none.
std::vector<double> LocalUpdateEngine::Impl::inner_rates() const {
  if (options_.method != OuterMethod::slowmo) return {};
  std::map<const c10::TensorImpl*, double> by_tensor;
  for (const auto& group : optimizer_->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      by_tensor[parameter.unsafeGetTensorImpl()] = group.options().get_lr();
    }
  }
  std::vector<double> rates;
  for (std::size_t i = 0; i < parameters_.count(); ++i) {
    const NamedParameter& parameter = parameters_[static_cast<int>(i)];
    const auto known = by_tensor.find(parameter.tensor.unsafeGetTensorImpl());
    if (known == by_tensor.end()) {
      throw UsageError("local updates: parameter '" + parameter.name +
                       "' is in no group of the optimizer; SlowMo needs its learning rate");
    }
    rates.push_back(known->second);
  }
  return rates;
}

namespace {

void require_rates(const std::vector<double>& rates) {
  for (const double rate : rates) {
    if (std::isfinite(rate) && rate > 0) continue;
    throw UsageError("local updates: SlowMo divides by the learning rate, which is " + std::to_string(rate) +
                     " at this round: keep the schedule above 0");
  }
}

}  // namespace

void LocalUpdateEngine::Impl::step(double weight) {
  if (failure_) std::rethrow_exception(failure_);
  if (!std::isfinite(weight) || weight < 0) {
    throw UsageError("local updates: the weight of a step must be finite and at least 0, not " +
                     std::to_string(weight));
  }
  parameters_.check();
  const Turn turn = timetable_.next();
  std::vector<double> rates;
  if (turn.sends && !alone()) require_rates(rates = inner_rates());
  guarded([&] {
    notice_failures();
    timetable_.advance();
    ++stats_.steps;
    since_state_.add(weight);
    if (turn.warms_up) {
      if (!turn.ends_warmup) return;
      for (const auto& member : members_) member->fragment.set_anchor();
      return;
    }
    since_node_.add(weight);
    for (const auto& member : members_) {
      member->since_sent.add(weight);
      member->dirty = true;
    }
    if (alone()) return;
    if (turn.inside_node) average_inside_node();
    if (turn.sends) send(*turn.sends);
    // After a finish() nothing may be under way at a place that would else apply it.
    if (turn.applies && members_[static_cast<std::size_t>(*turn.applies)]->under_way) {
      apply(*turn.applies, true, rates);
      if (!local_sgd::streams(options_)) combine_side_state();
    }
  });
}

void LocalUpdateEngine::Impl::average_inside_node() {
  Member& member = *members_.front();
  member.fragment.collect();
  const auto mean_inside = [this](const at::Tensor& flat, std::uint64_t check, local_sgd::ExchangeCost& cost) {
    local_sgd::ExchangeHeader mine = header(local_sgd::ExchangeKind::inside_node);
    mine.weight = since_node_.weight;
    mine.check = check;
    MeanExchange(groups_->node(), flat.numel(), WireFormat::fp32, options_.message_bytes).run(flat, mine, true, cost);
  };
  run([&](local_sgd::ExchangeCost& cost) {
    mean_inside(member.fragment.flat(), 0, cost);
    cost.bytes += side_state_->combine(
        groups_->node(), [&](const at::Tensor& flat, std::uint64_t check) { mean_inside(flat, check, cost); });
  });
  member.fragment.apply_inside_node();
  since_node_ = {};
  ++stats_.rounds_inside_node;
}

void LocalUpdateEngine::Impl::finish() {
  if (failure_) std::rethrow_exception(failure_);
  parameters_.check();
  const std::vector<double> rates = timetable_.warming_up() || alone() ? std::vector<double>() : inner_rates();
  if (members_.front()->dirty) require_rates(rates);
  guarded([&] {
    if (!alone()) {
      notice_failures();
      agree_to_finish();
      for (std::size_t i = 0; i < members_.size(); ++i) {
        if (members_[i]->under_way) apply(static_cast<int>(i), true, rates);
      }
      for (std::size_t i = 0; i < members_.size(); ++i) {
        if (!members_[i]->dirty) continue;
        send(static_cast<int>(i));
        apply(static_cast<int>(i), false, rates);
      }
      if (since_state_.steps > 0) combine_side_state();
    }
    timetable_.restart();
  });
}

LocalUpdateEngine::LocalUpdateEngine(const std::vector<NamedParameter>& parameters,
                                     const std::vector<NamedParameter>& buffers,
                                     std::shared_ptr<torch::optim::Optimizer> optimizer, Communicator channel,
                                     const LocalUpdateOptions& options)
    : impl_(std::make_unique<Impl>(parameters, buffers, std::move(optimizer), std::move(channel), options)) {}
LocalUpdateEngine::~LocalUpdateEngine() = default;

void LocalUpdateEngine::step(double weight) {
  impl_->step(weight);
}
void LocalUpdateEngine::finish() {
  impl_->finish();
}
bool LocalUpdateEngine::synchronous() const {
  return impl_->synchronous();
}
LocalUpdateStats LocalUpdateEngine::stats() const {
  return impl_->stats();
}
StateDict LocalUpdateEngine::state_dict() const {
  return impl_->state_dict();
}
void LocalUpdateEngine::load_state_dict(const StateDict& state) {
  impl_->load_state_dict(state);
}

}  // namespace tutti
