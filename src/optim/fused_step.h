#pragma once
// Optimizer steps with ATen's fused kernels. A kernel passes over memory once; LibTorch's loops pass once per
// operation.
#include <torch/optim/optimizer.h>

#include <optional>
#include <string>

namespace tutti {

/// Makes the step of LibTorch's AdamW, Adam, SGD or Adagrad.
/// - The state stays the optimizer's, so fused and other steps may alternate.
/// - The result differs from that of step() by rounding, and has the same bits on any number of threads. In bfloat16 it
///   is closer to the exact step, because step() rounds after each operation.
/// - It increases the version counters of the tensors that it writes, as LibTorch's SGD and Adagrad do not. So backward
///   through a graph from before the step throws instead of using new weights.
///
/// - The host does not wait for a device: the numbers of steps are filled in by the device.
///
/// Returns nullopt after the step. Otherwise it changes nothing and returns the reason: another class of optimizer, a
/// device for which LibTorch has no kernel, or a parameter, gradient or state that is not dense, of float, double or
/// bfloat16, on one device, and of the same layout.
std::optional<std::string> fused_step(torch::optim::Optimizer& optimizer);

}  // namespace tutti
