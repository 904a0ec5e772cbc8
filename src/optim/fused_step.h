#pragma once
// An optimizer step through ATen's fused kernels: one pass over memory, where LibTorch's own loops take one for each
// operation.
#include <torch/optim/optimizer.h>

#include <optional>
#include <string>

namespace tutti {

/// optimizer.step() of LibTorch's AdamW, Adam, SGD and Adagrad. The state stays the optimizer's own, so both kinds of
/// step may take turns. Parameters part from those of step() by rounding alone, and have the same bits on any number of
/// threads; bfloat16 ones come nearer to the exact step than those of step(), which rounds after each operation.
/// Unlike LibTorch's SGD and Adagrad it counts what it writes in the tensors' versions: backward through a graph that
/// is older than the step throws instead of using new weights.
///
/// Returns nullopt when it has stepped. Otherwise nothing has been changed, and it returns why: this is another
/// optimizer, or derived from one of these and so perhaps with a step() of its own; or a parameter, its gradient or its
/// state is not dense on the CPU, float, double or bfloat16, in the same layout.
std::optional<std::string> fused_step(torch::optim::Optimizer& optimizer);

}  // namespace tutti
