#pragma once
// Runs any operator of LibTorch on the simulated accelerator: a boxed function that queues the CPU's kernel on the
// current stream.
#include <ATen/core/dispatch/Dispatcher.h>

namespace tutti::test::simulated {

/// Replaces the arguments on `stack` by the results.
void run_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Runs the operator `name`, for kernels that stand in for other operators. Returns the results.
template <typename... Values>
torch::jit::Stack run_operator(const char* name, Values... values) {
  torch::jit::Stack stack;
  (stack.emplace_back(std::move(values)), ...);
  run_operator(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""), &stack);
  return stack;
}

}  // namespace tutti::test::simulated
