// The algorithm's exchanges: tasks for the communicator's thread, and the wait for their results.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <cmath>
#include <string>

#include "local_sgd/local_sgd_algorithm_impl.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti {

using local_sgd::ExchangeCost;
using local_sgd::ExchangeHeader;
using local_sgd::ExchangeKind;
using local_sgd::MeanExchange;

namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

// The mean over one rank is its own model.
bool LocalSgdAlgorithm::Impl::skips_exchange() const {
  return communicator_.size() == 1 && options_.outer_optimizer == OuterOptimizer::average;
}

ExchangeHeader LocalSgdAlgorithm::Impl::header(ExchangeKind kind) const {
  return {.kind = kind, .fragment = 0, .step = stats_.steps};
}

void LocalSgdAlgorithm::Impl::send(int index, const std::vector<double>& rates) {
  FragmentState& fragment_state = *fragments_[static_cast<std::size_t>(index)];
  ExchangeHeader local_header = header(ExchangeKind::round);
  local_header.fragment = index;
  local_header.weight = groups_ ? since_node_.weight : fragment_state.since_sent.weight;
  local_header.round_weight = fragment_state.since_sent.weight;
  round_rates_ = rates;
  // If no step was made since the last send, the weight is 0. finish() then combines the rest of a late result.
  const bool zero_is_equal = fragment_state.since_sent.steps == 0;
  fragment_state.fragment.start_collect();
  fragment_state.since_sent = {};
  fragment_state.dirty = false;
  fragment_state.cost = {};
  fragment_state.in_flight = true;
  ++stats_.rounds;
  fragment_state.work =
      comm::GradientCommunicator(communicator_).submit([this, &fragment_state, local_header, zero_is_equal] {
        const at::NoGradGuard no_grad;
        const Stopwatch watch(fragment_state.cost.seconds);
        fragment_state.fragment.finish_collect();
        const at::Tensor& flat = fragment_state.fragment.flat();
        if (groups_) {
          groups_->mean(flat, local_header, zero_is_equal, fragment_state.exchange.get(), options_.message_bytes,
                        fragment_state.cost);
        } else {
          fragment_state.exchange->run(flat, local_header, zero_is_equal, fragment_state.cost);
        }
        agree_on_rates();
      });
}

// Ranks may have skipped different steps, so their schedules may differ. The outer step must be equal on all ranks.
// Runs after the exchange of headers, so that ranks at different steps do not enter it. All ranks refuse the same
// rates.
void LocalSgdAlgorithm::Impl::agree_on_rates() {
  if (round_rates_.empty()) return;
  const at::Tensor rates =
      at::from_blob(round_rates_.data(), {static_cast<std::int64_t>(round_rates_.size())}, at::kDouble);
  communicator_.broadcast(rates, 0, comm::internal_call("Local SGD learning rates")).wait();
  for (const double rate : round_rates_) {
    if (std::isfinite(rate) && rate > 0) continue;
    throw UsageError("Local SGD: SlowMo divides by the learning rate of rank 0, which is " + std::to_string(rate) +
                     " in the last step of this round: keep the schedule above 0");
  }
}

void LocalSgdAlgorithm::Impl::apply(int index, bool late) {
  FragmentState& fragment_state = *fragments_[static_cast<std::size_t>(index)];
  wait(fragment_state.work);
  fragment_state.work = Work();
  fragment_state.in_flight = false;
  add(fragment_state.cost);
  fragment_state.fragment.apply(late, round_rates_);
  fragment_state.dirty = late && (options_.streaming.mix != 0 || options_.streaming.keep_local_progress);
}

void LocalSgdAlgorithm::Impl::combine_extra_state() {
  extra_state_->read(communicator_);
  run([this](ExchangeCost& cost) {
    const auto mean = [&](const at::Tensor& flat, std::uint64_t check) {
      ExchangeHeader local_header = header(ExchangeKind::state);
      local_header.weight = groups_ ? since_node_.weight : since_state_.weight;
      local_header.round_weight = since_state_.weight;
      local_header.check = check;
      const auto exact = [&](const Communicator& group, std::int64_t elements) {
        return MeanExchange(group, elements, WireFormat::fp32, options_.message_bytes);
      };
      if (!groups_) {
        exact(communicator_, flat.numel()).run(flat, local_header, true, cost);
      } else if (groups_->inter_node()) {
        MeanExchange inter_node_exchange =
            exact(*groups_->inter_node(), groups_->inter_node_shard(flat.numel()).length);
        groups_->mean(flat, local_header, true, &inter_node_exchange, options_.message_bytes, cost);
      } else {
        groups_->mean(flat, local_header, true, nullptr, options_.message_bytes, cost);
      }
    };
    cost.bytes += extra_state_->combine(communicator_, mean);
  });
  extra_state_->write();
  since_node_ = {};
  since_state_ = {};
}

void LocalSgdAlgorithm::Impl::require_all_in_finish() {
  run([this](ExchangeCost& cost) {
    MeanExchange(communicator_, 0, WireFormat::fp32, options_.message_bytes)
        .run(fragments_.front()->fragment.flat().slice(0, 0, 0), header(ExchangeKind::finish), true, cost);
  });
}

void LocalSgdAlgorithm::Impl::run(const std::function<void(ExchangeCost&)>& task) {
  ExchangeCost cost;
  wait(comm::GradientCommunicator(communicator_).submit([&] {
    const at::NoGradGuard no_grad;
    const Stopwatch watch(cost.seconds);
    task(cost);
  }));
  add(cost);
}

void LocalSgdAlgorithm::Impl::wait(const Work& work) {
  const Stopwatch watch(stats_.seconds_blocked);
  work.wait();
}

void LocalSgdAlgorithm::Impl::add(const ExchangeCost& cost) {
  stats_.bytes_sent += cost.bytes;
  stats_.bytes_between_nodes += cost.bytes_between_nodes;
  stats_.seconds_exchanging += cost.seconds;
}

// Reports a failure in the background in the next call, which may be before the result is due.
void LocalSgdAlgorithm::Impl::rethrow_background_failures() const {
  for (const auto& fragment_state : fragments_) {
    if (fragment_state->in_flight && fragment_state->work.is_completed()) fragment_state->work.wait();
  }
}

}  // namespace tutti
