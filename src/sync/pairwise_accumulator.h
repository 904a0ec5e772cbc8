#pragma once
// Sums of micro-batches in an order that does not depend on how these are dealt to ranks: neighbours first,
// ((0 + 1) + (2 + 3)) + ..., which is the order in which a Communicator adds ranks. So blocks of 2^n neighbours can be
// summed anywhere: pairwise summation (Higham, "The accuracy of floating point summation", 1993). As many partial sums
// are kept apart as the number of micro-batches has binary digits. Not thread safe.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

namespace tutti::sync {

class PairwiseAccumulator {
 public:
  /// The gradients of the next micro-batch: flat tensors, as many and as long each time. They are copied. `used` says
  /// which parameters it used.
  void push(const std::vector<at::Tensor>& flat, const std::vector<bool>& used);
  /// Adds what was pushed to `last`, the part `index` of the flat tensors of the micro-batch that follows.
  void add_to(at::Tensor last, int index) const;
  /// Whether some micro-batch that was pushed used `parameter`.
  bool used(int parameter) const { return !used_.empty() && used_[parameter]; }
  /// How many were pushed.
  std::int64_t micro_batches() const { return micro_batches_; }
  void clear();

 private:
  struct Sum {
    int level = 0;  // of 2^level micro-batches
    std::vector<at::Tensor> flat;
  };
  std::vector<Sum> sums_;  // levels descend
  std::int64_t micro_batches_ = 0;
  std::vector<bool> used_;
};

}  // namespace tutti::sync
