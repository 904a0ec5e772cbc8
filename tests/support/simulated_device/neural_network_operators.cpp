// Convolution and dropout: LibTorch asks a device of PrivateUse1 for kernels of its own. Autocast.
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <vector>

#include "support/simulated_device/dispatch.h"

namespace tutti::test::simulated {
namespace {

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  return run_operator("aten::convolution", input, weight, bias, stride, padding, dilation, transposed, output_padding,
                      groups)
      .at(0)
      .toTensor();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                                    const at::Tensor& weight, at::IntArrayRef stride,
                                                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                    bool transposed, at::IntArrayRef output_padding,
                                                                    std::int64_t groups, std::array<bool, 3> mask) {
  const std::vector<std::int64_t> bias_sizes{weight.size(transposed ? 1 : 0)};
  c10::List<bool> wanted;
  for (const bool is_wanted : mask) wanted.push_back(is_wanted);
  const torch::jit::Stack gradients = run_operator("aten::convolution_backward", gradient, input, weight,
                                                   mask[2] ? c10::IValue(bias_sizes) : c10::IValue(), stride, padding,
                                                   dilation, transposed, output_padding, groups, wanted);
  return {gradients.at(0).toTensor(), gradients.at(1).toTensor(), gradients.at(2).toTensor()};
}

std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0) return {input.clone(), at::ones_like(input, at::kBool)};
  const at::Tensor mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  return {input * mask * (p < 1 ? 1 / (1 - p) : 0), mask};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
  library.impl("native_dropout", &dropout);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

// LibTorch's lists of the operators that autocast runs in a dtype of lower precision, in fp32, and in the widest dtype
// of their arguments. KERNEL_PRIVATEUSEONE needs `m`.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TUTTI_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TUTTI_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TUTTI_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(TUTTI_LOWER_PRECISION)
  AT_FORALL_FP32(TUTTI_FP32)
  AT_FORALL_PROMOTE(TUTTI_PROMOTE)
}

}  // namespace
}  // namespace tutti::test::simulated
