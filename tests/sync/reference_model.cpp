#include "sync/reference_model.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace tutti::test {

namespace {

bool any_of(const ReferenceModel::Gradients& gradients) {
  return std::ranges::any_of(gradients, [](const at::Tensor& gradient) { return gradient.defined(); });
}

bool all_zero(const ReferenceModel::Gradients& gradients) {
  return std::ranges::none_of(
      gradients, [](const at::Tensor& gradient) { return gradient.defined() && gradient.any().item<bool>(); });
}

void add(ReferenceModel::Gradients& to, const ReferenceModel::Gradients& more, double factor = 1) {
  to.resize(more.size());
  for (std::size_t i = 0; i < more.size(); ++i) {
    if (!more[i].defined()) continue;
    to[i] = to[i].defined() ? to[i] + more[i] * factor : more[i] * factor;
  }
}

}  // namespace

torch::optim::SGDOptions options_of_moves() {
  return torch::optim::SGDOptions(0.1).momentum(0.5);
}

ReferenceModel::ReferenceModel(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)), optimizer_(parameters_, options_of_moves()), zeros_(parameters_.size()) {}

ReferenceModel::Gradients ReferenceModel::gradients() const {
  Gradients sum(parameters_.size());
  // A rank's scope has its weight once, for any number of passes.
  std::map<int, std::vector<double>> weighed;
  for (const Contribution& one : contributions_) {
    add(sum, one.sum);
    auto& weights = weighed[one.scope];
    weights.resize(one.weights.size());
    for (std::size_t rank = 0; rank < weights.size(); ++rank)
      weights[rank] = std::max(weights[rank], one.weights[rank]);
  }
  // The gradients of the window before belong to the scope of the first pass: its weight and those before are theirs.
  const auto first = std::ranges::find_if(contributions_, [](const Contribution& one) { return any_of(one.sum); });
  double total = 0;
  double of_base = 0;
  for (const auto& [scope, weights] : weighed) {
    for (const double weight : weights) total += weight;
    if (first == contributions_.end() || scope <= first->scope) of_base = total;
  }
  Gradients mean(parameters_.size());
  if (base_) add(mean, *base_, weighted() && total > 0 ? of_base / total : 1);
  add(mean, sum, weighted() ? 1 / total : 1);
  add(mean, zeros_);
  return mean;
}

bool ReferenceModel::reached() const {
  return std::ranges::any_of(contributions_, [](const Contribution& one) { return any_of(one.sum); });
}

bool ReferenceModel::reached_in_scope() const {
  return std::ranges::any_of(contributions_,
                             [this](const Contribution& one) { return one.scope == scope_ && any_of(one.sum); });
}

bool ReferenceModel::uneven() const {
  return weighted() && std::ranges::any_of(contributions_, [](const Contribution& one) {
           return std::ranges::find(one.weights, 0) != one.weights.end();
         });
}

double ReferenceModel::norm() const {
  double squares = 0;
  for (const at::Tensor& gradient : gradients()) {
    if (gradient.defined()) squares += gradient.to(at::kDouble).pow(2).sum().item<double>();
  }
  return std::sqrt(squares);
}

void ReferenceModel::open(bool last) {
  scope_ = ++scopes_;
  last_ = last;
  stepped_ = false;
}

void ReferenceModel::close() {
  if (last_ && stepped_ && reached()) finish(false);
  // A window without gradients ends with its last scope.
  if (last_ && !reached()) contributions_.clear();
  // A scope's end synchronizes what the scope's passes did not.
  if (last_) mean_ = Mean::yes;
  complete_ = complete_ || last_;
  scope_ = 0;
}

bool ReferenceModel::refuses_pass() const {
  if (!reached()) {
    return base_ && !all_zero(*base_) && scope_ != 0 && (!last_ || (base_used_ && base_scope_ != scope_));
  }
  return weighted() != (scope_ != 0);
}

void ReferenceModel::pass(const Gradients& sum, const std::vector<double>& weights, Mean mean) {
  if (scope_ == 0 && !reached()) contributions_.clear();
  complete_ = false;
  contributions_.push_back({.sum = sum, .scope = scope_, .weights = weights});
  mean_ = mean;
}

void ReferenceModel::weigh(const std::vector<double>& weights) {
  if (reached() && !weighted()) return;
  if (reached() && contributions_.back().scope != scope_) mean_ = Mean::no;
  // In a window's last scope, zero_grad() still clears a window that the scope's passes have not reached.
  if (!last_) complete_ = false;
  contributions_.push_back({.sum = Gradients(parameters_.size()), .scope = scope_, .weights = weights});
}

void ReferenceModel::scale(double factor) {
  const auto scaled = [factor](Gradients& gradients) {
    for (at::Tensor& gradient : gradients) {
      if (gradient.defined()) gradient = gradient * factor;
    }
  };
  for (Contribution& one : contributions_) scaled(one.sum);
  if (base_) scaled(*base_);
}

void ReferenceModel::step() {
  if (!at_window_end()) return;
  finish(true);
  stepped_ = true;
  const Gradients gradients = base_.value_or(Gradients(parameters_.size()));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].mutable_grad() =
        gradients[i].defined() ? gradients[i].to(parameters_[i].scalar_type()).clone() : at::Tensor();
  }
  optimizer_.step();
  mean_ = Mean::yes;
}

void ReferenceModel::finish(bool used) {
  Gradients all = gradients();
  contributions_.clear();
  complete_ = false;
  std::fill(zeros_.begin(), zeros_.end(), at::Tensor());
  base_.reset();
  if (any_of(all)) base_ = std::move(all);
  base_used_ = used;
  base_scope_ = scope_;
}

void ReferenceModel::zero(bool in_place) {
  if (scope_ == 0 || !weighted()) return forget(in_place);
  if (!reached()) return base_ ? forget_base(in_place) : static_cast<void>(0);
  if (complete_ || (last_ && reached_in_scope())) forget(in_place);
}

void ReferenceModel::zero_behind(bool in_place) {
  if (reached()) return forget(in_place);
  if (!in_place || !base_) return forget_base(in_place);
  // The gradients that a step has used become zeros.
  scale(0);
}

// The weights of the scopes so far stay.
void ReferenceModel::forget_base(bool in_place) {
  const std::vector<Contribution> weights = std::exchange(contributions_, {});
  forget(in_place);
  contributions_ = weights;
}

void ReferenceModel::forget(bool in_place) {
  const Gradients before = gradients();
  contributions_.clear();
  complete_ = false;
  base_.reset();
  for (std::size_t i = 0; i < before.size(); ++i) {
    zeros_[i] = in_place && before[i].defined() ? at::zeros_like(before[i]) : at::Tensor();
  }
  // Until the next round, ranks may have zeros for different parameters.
  if (!in_place) mean_ = Mean::yes;
}

void ReferenceModel::start_again(const std::vector<at::Tensor>& parameters) {
  forget(false);
  scope_ = 0;
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].copy_(parameters[i]);
}

}  // namespace tutti::test
