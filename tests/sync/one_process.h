#pragma once
// What a random program means: all ranks' micro-batches on one process, in double, without any synchronization.
#include <ATen/core/TensorBody.h>

#include <vector>

#include "sync/random_program.h"

namespace tutti::test {

class OneProcess {
 public:
  explicit OneProcess(const Program& program);

  /// All ranks' backward passes, as one. `weighted`: inside accumulate().
  void pass(const ProgramScope& scope, const ProgramPass& pass, bool weighted);
  /// The weights of a scope's micro-batches.
  void weigh(const ProgramScope& scope);
  /// The window of `optimizer` is complete: its weighted sum becomes the mean.
  void complete(int optimizer);
  void halve(int optimizer);
  void step(int optimizer);
  void clear(int optimizer, bool set_to_none);
  /// zero_grad() that does not end a window.
  void clear_gradients(int optimizer, bool set_to_none);

  const at::Tensor& parameter(int index) const { return parameters_[index]; }
  /// Undefined where no rank has used the parameter.
  const at::Tensor& gradient(int index) const { return gradients_[index]; }

 private:
  template <typename Action>
  void each_of(int optimizer, const Action& action);

  const Program& program_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> gradients_;  // sums, in a weighted window that is not complete
  std::vector<double> weights_;        // by optimizer
};

}  // namespace tutti::test
