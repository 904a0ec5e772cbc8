#include "sync/sparse_gradients.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "tutti/core/error.h"

namespace tutti::sync {

namespace {

at::Tensor scaled(const at::Tensor& gradient, double factor) {
  // Multiplies the values only: the product of a sparse tensor is not marked as coalesced.
  at::Tensor rows = gradient.coalesce().clone();
  rows.values().mul_(factor);
  return rows;
}

}  // namespace

SparseGradients::SparseGradients(std::vector<NamedParameter> parameters)
    : parameters_(std::move(parameters)), states_(parameters_.size()) {}

void SparseGradients::track(int index, const at::Tensor& gradient, bool averaged) {
  parameters_[index].tensor.mutable_grad() = gradient;
  states_[index] = {.tracked = gradient, .version = gradient.defined() ? gradient._version() : 0, .averaged = averaged};
}

void SparseGradients::on_gradient(int index) {
  const at::Tensor& grad = gradient(index);
  if (!grad.defined()) return;
  if (grad.layout() != at::kSparse || grad.sparse_dim() != 1) {
    throw UsageError("the gradient of " + quoted(parameters_[index]) +
                     " is dense, though its embedding was made with sparse(true): another operation uses the parameter "
                     "too. Create the embedding with sparse(false)");
  }
  const at::NoGradGuard no_grad;
  track(index, grad.coalesce(), states_[index].averaged);
}

void SparseGradients::to_local_share(int index, double factor) {
  if (!std::exchange(states_[index].averaged, false) || !gradient(index).defined() || factor == 1) return;
  const at::NoGradGuard no_grad;
  track(index, scaled(gradient(index), factor), false);
}

void SparseGradients::scale_local_shares(double factor) {
  const at::NoGradGuard no_grad;
  for (int i = 0; i < count(); ++i) {
    if (!states_[i].averaged && gradient(i).defined()) track(i, scaled(gradient(i), factor), false);
  }
}

void SparseGradients::set_mean(int index, const at::Tensor& mean) {
  track(index, mean, true);
}

void SparseGradients::load(int index, const at::Tensor& gradient, bool averaged) {
  const at::NoGradGuard no_grad;
  track(index, gradient.to_sparse(1).coalesce(), averaged);
}

std::optional<std::string> SparseGradients::carried_over() const {
  for (int i = 0; i < count(); ++i) {
    if (states_[i].tracked.defined() && gradient(i).defined()) return quoted(parameters_[i]);
  }
  return std::nullopt;
}

std::optional<std::string> SparseGradients::modified() const {
  for (int i = 0; i < count(); ++i) {
    const State& state = states_[i];
    if (!state.tracked.defined()) continue;
    if (!gradient(i).is_same(state.tracked) || state.tracked._version() != state.version) return quoted(parameters_[i]);
  }
  return std::nullopt;
}

void SparseGradients::untrack_cleared() {
  for (int i = 0; i < count(); ++i) {
    if (!gradient(i).defined()) states_[i] = {};
  }
}

void SparseGradients::untrack_all() {
  for (State& state : states_) state = {};
}

}  // namespace tutti::sync
