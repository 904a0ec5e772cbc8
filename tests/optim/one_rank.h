#pragma once
// An optimizer over one parameter on one rank, for tests of classes that act on optimizers.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <utility>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/optim/optimizer.h"

namespace tutti::test {

struct OneRank {
  at::Tensor weight = at::zeros({2}).requires_grad_();
  std::shared_ptr<Reducer> reducer =
      std::make_shared<Reducer>(std::vector<NamedParameter>{{.name = "weight", .tensor = weight}}, Communicator(),
                                ReducerOptions{.detect_overflow = true});

  /// A prepared optimizer over the parameter; the default is SGD with these rates. A second group is empty.
  Optimizer with(std::shared_ptr<torch::optim::Optimizer> inner, std::shared_ptr<GradScaler> scaler = nullptr) const {
    return {std::move(inner), reducer, {.names = {"weight"}, .scaler = std::move(scaler)}};
  }
  Optimizer sgd(const std::vector<double>& rates = {1.0}, std::shared_ptr<GradScaler> scaler = nullptr) const {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const double rate : rates) {
      auto options = std::make_unique<torch::optim::SGDOptions>(rate);
      options->momentum(0.5);
      groups.emplace_back(groups.empty() ? std::vector<at::Tensor>{weight} : std::vector<at::Tensor>(),
                          std::move(options));
    }
    return with(std::make_shared<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(1.0)),
                std::move(scaler));
  }
  /// A backward pass in which every element of the gradient is `gradient`.
  void backward(float gradient = 1.0F) const { (weight * at::full({2}, gradient)).sum().backward(); }
};

}  // namespace tutti::test
