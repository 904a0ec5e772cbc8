#include "sync/one_process.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace tutti::test {

OneProcess::OneProcess(const Program& program)
    : program_(program), gradients_(program.parameters.size()), weights_(program.optimizers, 0) {
  for (std::size_t i = 0; i < program.parameters.size(); ++i) {
    parameters_.push_back(random_integers(program.parameters[i].shape, program.seed + i));
  }
}

void OneProcess::pass(const ProgramScope& scope, const ProgramPass& pass, bool weighted) {
  std::vector<at::Tensor> sums(parameters_.size());
  for (int rank = 0; rank < program_.ranks; ++rank) {
    if (!scope.present[rank]) continue;
    for (const Use& use : pass.uses[rank]) {
      at::Tensor& sum = sums[use.parameter];
      const at::Tensor gradient = gradient_of(program_, use);
      sum = sum.defined() ? sum + gradient : gradient;
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (!sums[i].defined()) continue;
    if (!weighted) sums[i] = sums[i] / program_.ranks;
    gradients_[i] = gradients_[i].defined() ? gradients_[i] + sums[i] : sums[i];
  }
}

void OneProcess::weigh(const ProgramScope& scope) {
  for (double& weight : weights_) {
    for (int rank = 0; rank < program_.ranks; ++rank) weight += scope.present[rank] ? scope.weights[rank] : 0;
  }
}

void OneProcess::complete(int optimizer) {
  each_of(optimizer, [&](std::size_t i) { gradients_[i] = gradients_[i] / weights_[optimizer]; });
  weights_[optimizer] = 0;
}

void OneProcess::halve(int optimizer) {
  each_of(optimizer, [&](std::size_t i) { gradients_[i] = gradients_[i] / 2; });
}

void OneProcess::step(int optimizer) {
  each_of(optimizer, [&](std::size_t i) { parameters_[i] = parameters_[i] - program_.learning_rate * gradients_[i]; });
}

void OneProcess::clear(int optimizer, bool set_to_none) {
  clear_gradients(optimizer, set_to_none);
  weights_[optimizer] = 0;
}

void OneProcess::clear_gradients(int optimizer, bool set_to_none) {
  each_of(optimizer,
          [&](std::size_t i) { gradients_[i] = set_to_none ? at::Tensor() : at::zeros_like(gradients_[i]); });
}

template <typename Action>
void OneProcess::each_of(int optimizer, const Action& action) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (program_.parameters[i].optimizer == optimizer && gradients_[i].defined()) action(i);
  }
}

}  // namespace tutti::test
