#include "train/training_run.h"

#include <ATen/Functions.h>

namespace tutti::test {

Batch Samples::get_batch(const std::vector<std::size_t>& indices) const {
  std::vector<at::Tensor> inputs, targets;
  for (const std::size_t index : indices) {
    const Batch one = batch_of(static_cast<std::int64_t>(index), at::kFloat, 1);
    inputs.push_back(one.input);
    targets.push_back(one.target);
  }
  return {.input = at::cat(inputs), .target = at::cat(targets)};
}

NoisyImpl::NoisyImpl(double dropout_probability)
    : first(register_module("first", torch::nn::Linear(6, 8))),
      second(register_module("second", torch::nn::Linear(8, 3))),
      dropout(register_module("dropout", torch::nn::Dropout(dropout_probability))) {
  fill(*this, 1);
}

at::Tensor NoisyImpl::forward(const at::Tensor& x) {
  return second(dropout(at::tanh(first(x))));
}

std::string bytes_of(const torch::nn::Module& model) {
  std::string bytes;
  const auto append = [&bytes](const at::Tensor& tensor) {
    const at::Tensor plain = tensor.detach().contiguous();
    bytes.append(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
  };
  for (const at::Tensor& parameter : model.parameters()) append(parameter);
  for (const at::Tensor& buffer : model.buffers()) append(buffer);
  return bytes;
}

}  // namespace tutti::test
