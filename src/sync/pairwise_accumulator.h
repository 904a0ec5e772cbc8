#pragma once
// Sums micro-batches in an order that does not depend on how they are sharded to ranks: neighbours first,
// ((0 + 1) + (2 + 3)) + .... A Communicator adds ranks in the same order, so any rank may sum a block of 2^n
// neighbours. This is pairwise summation (Higham, "The accuracy of floating point summation", 1993). The number of
// stored partial sums is at most the number of binary digits of the number of micro-batches. Not thread safe.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

namespace tutti::sync {

class PairwiseAccumulator {
 public:
  /// Copies and adds the gradients of the next micro-batch. `flat`: flat tensors, equal in number and sizes in all
  /// calls. `used`: for each parameter, whether the micro-batch used it.
  void push(const std::vector<at::Tensor>& flat, const std::vector<bool>& used);
  /// Adds the pushed sums to `last`, flat tensor `index` of the next micro-batch.
  void add_to(at::Tensor last, int index) const;
  /// Multiplies the pushed sums.
  void scale(double factor);
  /// Whether any pushed micro-batch used `parameter`.
  bool used(int parameter) const { return !used_.empty() && used_[parameter]; }
  /// Number of pushed micro-batches.
  std::int64_t micro_batches() const { return micro_batches_; }
  void clear();

 private:
  struct Sum {
    int level = 0;  // the sum of 2^level micro-batches
    std::vector<at::Tensor> flat;
  };
  std::vector<Sum> sums_;  // levels descend
  std::int64_t micro_batches_ = 0;
  std::vector<bool> used_;
};

}  // namespace tutti::sync
