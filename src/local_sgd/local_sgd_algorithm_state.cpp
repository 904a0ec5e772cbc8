// Saves and loads the state of the algorithm.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <span>
#include <sstream>
#include <utility>

#include "local_sgd/check_options.h"
#include "local_sgd/local_sgd_algorithm_impl.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti {

namespace {

std::string key_of(std::size_t fragment, const std::string& name) {
  return "fragment." + std::to_string(fragment) + "." + name;
}

[[noreturn]] void throw_mismatch(const std::string& what) {
  throw CheckpointError("Local SGD: the saved state does not fit, and nothing was loaded: " + what);
}

std::int64_t count_of(const StateDict& state, const std::string& name) {
  const auto value = state.get<std::int64_t>(name);
  if (value < 0) throw_mismatch("'" + name + "' is negative");
  return value;
}

double weight_of(const StateDict& state, const std::string& name) {
  const auto value = state.get<double>(name);
  if (!std::isfinite(value) || value < 0) throw_mismatch("'" + name + "' is not a valid weight");
  return value;
}

/// Fragments are flat, so their values belong to parameters by the order of the names.
std::int64_t checksum_of_names(const local_sgd::TrainedParameters& parameters) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < parameters.count(); ++i) {
    const std::string line = parameters[static_cast<int>(i)].name + "\n";
    sum = crc32c(std::as_bytes(std::span(line)), sum);
  }
  return sum;
}

}  // namespace

/// The values of a state. All are read before any tensor changes.
struct LocalSgdAlgorithm::Impl::ParsedState {
  struct ParsedFragment {
    Progress since_sent;
    bool dirty = false;
    bool in_flight = false;
  };

  std::int64_t steps = 0;
  local_sgd::Schedule schedule;
  Progress since_node;
  Progress since_state;
  std::vector<double> step_rates;
  std::vector<ParsedFragment> fragments;
  /// Pairs of a target tensor and the saved tensor.
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors;
};

StateDict LocalSgdAlgorithm::Impl::state_dict() const {
  if (failure_) std::rethrow_exception(failure_);
  StateDict state;
  const auto set_progress = [&](const std::string& name, const Progress& progress) {
    state.set(name + ".steps", progress.steps);
    state.set(name + ".weight", progress.weight);
  };
  state.set("rank", static_cast<std::int64_t>(communicator_.rank()));
  state.set("size", static_cast<std::int64_t>(communicator_.size()));
  state.set("steps", stats_.steps);
  state.set("warmed", schedule_.warmed());
  state.set("position", schedule_.position());
  state.set("parameters", checksum_of_names(parameters_));
  state.set("fragments", static_cast<std::int64_t>(fragments_.size()));
  set_progress("since_node", since_node_);
  set_progress("since_state", since_state_);
  if (!step_rates_.empty()) state.set("step_rates", step_rates_);
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    const FragmentState& fragment_state = *fragments_[i];
    if (fragment_state.in_flight) fragment_state.work.wait();
    set_progress(key_of(i, "since_sent"), fragment_state.since_sent);
    state.set(key_of(i, "dirty"), fragment_state.dirty);
    if (fragment_state.in_flight) state.set(key_of(i, "mean"), fragment_state.fragment.flat());
    if (fragment_state.in_flight && fragment_state.fragment.sent().defined())
      state.set(key_of(i, "sent"), fragment_state.fragment.sent());
    if (fragment_state.fragment.anchor().defined()) state.set(key_of(i, "anchor"), fragment_state.fragment.anchor());
    if (fragment_state.fragment.momentum().defined())
      state.set(key_of(i, "momentum"), fragment_state.fragment.momentum());
    if (!fragment_state.exchange) continue;
    for (const auto& [name, tensor] : fragment_state.exchange->residuals()) state.set(key_of(i, name), tensor);
  }
  return state;
}

LocalSgdAlgorithm::Impl::ParsedState LocalSgdAlgorithm::Impl::read(const Impl& into, const StateDict& state) {
  ParsedState parsed{.schedule = into.schedule_,
                     .since_node = {},
                     .since_state = {},
                     .step_rates = {},
                     .fragments = {},
                     .tensors = {}};
  std::size_t used = 0;
  const auto progress = [&](const std::string& name) {
    used += 2;
    return Progress{.steps = count_of(state, name + ".steps"), .weight = weight_of(state, name + ".weight")};
  };
  const auto tensor = [&](const std::string& name, const at::Tensor& target) {
    ++used;
    const at::Tensor& saved = state.get<at::Tensor>(name);
    if (!saved.defined() || saved.sizes() != target.sizes() || saved.scalar_type() != target.scalar_type()) {
      std::ostringstream text;
      text << "'" << name << "' should be " << toString(target.scalar_type()) << target.sizes();
      throw_mismatch(text.str());
    }
    parsed.tensors.emplace_back(target, saved);
  };
  const std::int64_t rank = count_of(state, "rank"), size = count_of(state, "size");
  if (rank != into.communicator_.rank() || size != into.communicator_.size()) {
    throw_mismatch(
        "it belongs to rank " + std::to_string(rank) + " of " + std::to_string(size) + ", but this is rank " +
        std::to_string(into.communicator_.rank()) + " of " + std::to_string(into.communicator_.size()) +
        ". To change the number of ranks, call finish() before saving and do not load the algorithm's state");
  }
  if (count_of(state, "fragments") != static_cast<std::int64_t>(into.fragments_.size())) {
    throw_mismatch("it has " + std::to_string(count_of(state, "fragments")) + " fragments, this algorithm has " +
                   std::to_string(into.fragments_.size()));
  }
  if (state.contains("parameters")) {  // not in states of earlier versions
    if (count_of(state, "parameters") != checksum_of_names(into.parameters_)) {
      throw_mismatch("its parameters have other names, or are in another order");
    }
    ++used;
  }
  if (state.contains("step_rates") && into.options_.outer_optimizer == OuterOptimizer::slowmo) {
    parsed.step_rates = state.get<std::vector<double>>("step_rates");
    ++used;
  }
  parsed.steps = count_of(state, "steps");
  if (!parsed.schedule.move_to(count_of(state, "warmed"), count_of(state, "position"))) {
    throw_mismatch("its position is not in this schedule: the warm-up had another length");
  }
  used += 6;
  parsed.since_node = progress("since_node");
  parsed.since_state = progress("since_state");
  for (std::size_t i = 0; i < into.fragments_.size(); ++i) {
    const FragmentState& fragment_state = *into.fragments_[i];
    ParsedState::ParsedFragment& of = parsed.fragments.emplace_back();
    of.since_sent = progress(key_of(i, "since_sent"));
    of.dirty = state.get<bool>(key_of(i, "dirty"));
    ++used;
    of.in_flight = state.contains(key_of(i, "mean"));
    if (of.in_flight) tensor(key_of(i, "mean"), fragment_state.fragment.flat());
    if (of.in_flight && fragment_state.fragment.sent().defined())
      tensor(key_of(i, "sent"), fragment_state.fragment.sent());
    if (fragment_state.fragment.anchor().defined()) tensor(key_of(i, "anchor"), fragment_state.fragment.anchor());
    if (fragment_state.fragment.momentum().defined()) tensor(key_of(i, "momentum"), fragment_state.fragment.momentum());
    if (!fragment_state.exchange) continue;
    for (const auto& [name, residual] : fragment_state.exchange->residuals()) tensor(key_of(i, name), residual);
  }
  // Further values belong to another method or wire format, and would be lost.
  if (used != state.values().size()) throw_mismatch("it has values that this method and wire format do not use");
  return parsed;
}

void LocalSgdAlgorithm::Impl::load_state_dict(const StateDict& state) {
  if (failure_) std::rethrow_exception(failure_);
  const at::NoGradGuard no_grad;
  for (const auto& fragment_state : fragments_) {
    if (fragment_state->in_flight) fragment_state->work.wait();
  }
  const ParsedState parsed = read(*this, state);
  // No statement below can fail.
  for (const auto& [target, saved] : parsed.tensors) target.copy_(saved);
  stats_.steps = parsed.steps;
  schedule_ = parsed.schedule;
  since_node_ = parsed.since_node;
  since_state_ = parsed.since_state;
  step_rates_ = parsed.step_rates;
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    FragmentState& fragment_state = *fragments_[i];
    fragment_state.since_sent = parsed.fragments[i].since_sent;
    fragment_state.dirty = parsed.fragments[i].dirty;
    fragment_state.in_flight = parsed.fragments[i].in_flight;
    fragment_state.work = Work();
    fragment_state.cost = {};
  }
}

}  // namespace tutti
