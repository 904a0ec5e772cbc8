#include "local_sgd/local_run.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "support/training.h"
#include "tutti/detail/optim/optimizer_state.h"

namespace tutti::test {

Tensors initial_model(at::ScalarType dtype) {
  return {random_tensor({5, 7}, 1, dtype), random_tensor({3}, 2, dtype), random_tensor({4, 6}, 3, dtype).t(),
          random_tensor({1}, 4, dtype)};
}

at::Tensor gradient(const at::Tensor& parameter, int index, int rank, int step) {
  const std::int64_t seed = 10'000 + 1000 * rank + 10 * step + index;
  const at::Tensor value = parameter.detach();
  const at::Tensor target = random_tensor(value.sizes(), static_cast<std::uint64_t>(seed), value.scalar_type());
  return value - target.to(value.device());
}

void sgd_step(const Tensors& model, int rank, int step, double rate) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < model.size(); ++i) {
    model[i].sub_(gradient(model[i], static_cast<int>(i), rank, step), rate);
  }
}

Tensors mean_of(const std::vector<Tensors>& models, std::vector<double> weights) {
  if (weights.empty()) weights.assign(models.size(), 1);
  double total = 0;
  for (const double weight : weights) total += weight;
  Tensors result;
  for (std::size_t i = 0; i < models.front().size(); ++i) {
    at::Tensor sum = at::zeros_like(models.front()[i], at::kDouble);
    for (std::size_t rank = 0; rank < models.size(); ++rank) {
      if (weights[rank] != 0) sum.add_(models[rank][i].detach(), weights[rank]);
    }
    result.push_back((sum / total).to(models.front()[i].scalar_type()));
  }
  return result;
}

Tensors copy_of(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

namespace {

std::string bytes_of(const Tensors& tensors) {
  std::string bytes;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor dense = tensor.detach().contiguous();
    bytes.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  }
  return bytes;
}

}  // namespace

bool same_bits(const Tensors& a, const Tensors& b) {
  return bytes_of(a) == bytes_of(b);
}

bool same_on_all_ranks(const Communicator& communicator, const Tensors& tensors) {
  const std::string mine = bytes_of(tensors);
  for (const std::string& other : communicator.all_gather_object(mine)) {
    if (other != mine) return false;
  }
  return true;
}

LocalRun::LocalRun(const Communicator& communicator, RunOptions options)
    : rank(communicator.rank()),
      parameters(initial_model(options.dtype)),
      buffer(at::zeros({2}, at::TensorOptions(options.device))),
      counter(at::zeros({}, at::TensorOptions(at::kLong).device(options.device))) {
  std::vector<NamedParameter> named;
  for (at::Tensor& parameter : parameters) {
    parameter = parameter.to(options.device);
    parameter.set_requires_grad(true);
    names_.push_back("parameter" + std::to_string(names_.size()));
    named.push_back({names_.back(), parameter});
  }
  if (options.adam) {
    optimizer = std::make_shared<torch::optim::Adam>(parameters, torch::optim::AdamOptions(options.rate));
  } else {
    optimizer = std::make_shared<torch::optim::SGD>(parameters,
                                                    torch::optim::SGDOptions(options.rate).momentum(options.momentum));
  }
  algorithm =
      std::make_unique<LocalSgdAlgorithm>(named, std::vector<NamedParameter>{{"mean", buffer}, {"count", counter}},
                                          optimizer, communicator.duplicate("local"), options.updates);
}

void LocalRun::step(double weight, const std::vector<double>& rates) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = gradient(parameters[i], static_cast<int>(i), rank, done);
  }
  optimizer->step();
  buffer.add_(rank + 1);
  counter.add_(1);
  ++done;
  algorithm->step(weight, rates);
}

void LocalRun::steps(int count) {
  for (int i = 0; i < count; ++i) step();
}

StateDict LocalRun::save() const {
  StateDict state;
  for (std::size_t i = 0; i < parameters.size(); ++i) state.set("model." + names_[i], parameters[i].detach());
  state.set("buffer", buffer);
  state.set("counter", counter);
  state.set("done", static_cast<std::int64_t>(done));
  state.set("optimizer", optimizer_state(*optimizer, names_));
  state.set("algorithm", algorithm->state_dict());
  return copy_to_cpu(state);
}

void LocalRun::restore(const StateDict& state) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].copy_(state.get<at::Tensor>("model." + names_[i]));
  }
  buffer.copy_(state.get<at::Tensor>("buffer"));
  counter.copy_(state.get<at::Tensor>("counter"));
  done = static_cast<int>(state.get<std::int64_t>("done"));
  load_optimizer_state(*optimizer, names_, state.part("optimizer"));
  algorithm->load_state_dict(state.part("algorithm"));
}

}  // namespace tutti::test
