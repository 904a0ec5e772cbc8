#pragma once
// Computes what a random program means: all ranks' micro-batches on one process, in double, without synchronization.
#include <ATen/core/TensorBody.h>

#include <vector>

#include "sync/random_program.h"

namespace tutti::test {

class OneProcess {
 public:
  explicit OneProcess(const Program& program);

  /// Runs all ranks' backward passes as one. `weighted`: the passes run inside accumulate().
  void pass(const ProgramScope& scope, const ProgramPass& pass, bool weighted);
  /// Adds the weights of a scope's micro-batches.
  void weigh(const ProgramScope& scope);
  /// Ends the window of `optimizer`: its weighted sum becomes the mean.
  void complete(int optimizer);
  void halve(int optimizer);
  void step(int optimizer);
  void clear(int optimizer, bool set_to_none);
  /// Clears gradients without ending the window.
  void clear_gradients(int optimizer, bool set_to_none);

  const at::Tensor& parameter(int index) const { return parameters_[index]; }
  /// Undefined if no rank has used the parameter.
  const at::Tensor& gradient(int index) const { return gradients_[index]; }

 private:
  template <typename Action>
  void each_of(int optimizer, const Action& action);

  const Program& program_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> gradients_;  // sums while a weighted window is not complete
  std::vector<double> weights_;        // by optimizer
};

}  // namespace tutti::test
