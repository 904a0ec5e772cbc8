#pragma once
// Small models with the special cases of a file: buffers, a layer without bias, a tensor with two names.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace tutti::test {

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(3, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))),
        second(register_module("second", torch::nn::Linear(torch::nn::LinearOptions(4, 2).bias(false)))) {}
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
};
TORCH_MODULE(Net);

// A module whose weight belongs to another module.
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const at::Tensor& shared)
      : weight(register_parameter("weight", shared)), bias(register_parameter("bias", at::zeros({shared.size(0)}))) {}
  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(Head);

struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(5, 3))),
        head(register_module("head", Head(embedding->weight))) {}
  torch::nn::Embedding embedding;
  Head head;
};
TORCH_MODULE(Tied);

}  // namespace tutti::test
