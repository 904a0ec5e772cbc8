#pragma once
// The gradients of parameters that are used a few rows at a time (torch::nn::Embedding with sparse(true)). They have no
// slot in the flat memory; .grad is a coalesced sparse tensor, and only the rows that were used travel, at the end of a
// pass. Not thread safe.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/sync/named_parameter.h"

namespace tutti::sync {

class SparseGradients {
 public:
  explicit SparseGradients(std::vector<NamedParameter> parameters);

  int count() const { return static_cast<int>(parameters_.size()); }
  const at::Tensor& parameter(int index) const { return parameters_[index].tensor; }
  const at::Tensor& gradient(int index) const { return parameters_[index].tensor.grad(); }

  /// Autograd has added to the gradient. Throws UsageError for one that is not sparse in its rows.
  void arrived(int index);
  /// A mean becomes this rank's share of the sum that it came from: `factor` times as much. What is one already stays.
  void make_share(int index, double factor);
  /// Multiplies what is no mean by `factor`.
  void scale_shares(double factor);
  /// The mean over ranks, which becomes the gradient; undefined if no rank has one.
  void synchronized(int index, const at::Tensor& mean);
  /// A state_dict()'s gradient, dense.
  void load(int index, const at::Tensor& gradient, bool averaged);

  /// Whether the gradient is the mean over ranks.
  bool averaged(int index) const { return states_[index].averaged; }
  /// Whether autograd or synchronization left a gradient, wherever it is now.
  bool left_here(int index) const { return states_[index].left.defined(); }
  /// The name of a parameter whose gradient autograd or synchronization left, and that is there still; nullopt if none.
  std::optional<std::string> left() const;
  /// Whether the gradient is that one.
  bool is_left(int index) const { return gradient(index).is_same(states_[index].left); }
  /// The name of a parameter whose gradient is no longer what autograd left; nullopt if none.
  std::optional<std::string> touched() const;
  /// Nothing was left where the program has cleared the gradient.
  void forget_cleared();
  /// Gradients have been cleared, or count as none of ours from here on.
  void forget();

 private:
  struct State {
    at::Tensor left{};         // the gradient as it was left here
    std::int64_t version = 0;  // and its version then
    bool averaged = false;
  };
  void leave(int index, const at::Tensor& gradient, bool averaged);

  std::vector<NamedParameter> parameters_;
  std::vector<State> states_;
};

}  // namespace tutti::sync
