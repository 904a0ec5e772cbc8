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
  void on_gradient(int index);
  /// A mean becomes this rank's share of the sum that it came from: `factor` times as much. What is one already stays.
  void to_local_share(int index, double factor);
  /// Multiplies what is no mean by `factor`.
  void scale_local_shares(double factor);
  /// The mean over ranks, which becomes the gradient; undefined if no rank has one.
  void set_mean(int index, const at::Tensor& mean);
  /// A state_dict()'s gradient, dense.
  void load(int index, const at::Tensor& gradient, bool averaged);

  /// Whether the gradient is the mean over ranks.
  bool averaged(int index) const { return states_[index].averaged; }
  /// Whether autograd or synchronization left a gradient, wherever it is now.
  bool is_tracked(int index) const { return states_[index].tracked.defined(); }
  /// The name of a parameter whose gradient autograd or synchronization left, and that is there still; nullopt if none.
  std::optional<std::string> carried_over() const;
  /// Whether the gradient is that one.
  bool is_tracked_gradient(int index) const { return gradient(index).is_same(states_[index].tracked); }
  /// The name of a parameter whose gradient is no longer what autograd left; nullopt if none.
  std::optional<std::string> modified() const;
  /// Nothing was left where the program has cleared the gradient.
  void untrack_cleared();
  /// Gradients have been cleared, or count as none of ours from here on.
  void untrack_all();

 private:
  struct State {
    at::Tensor tracked{};      // the gradient as it was left here
    std::int64_t version = 0;  // and its version then
    bool averaged = false;
  };
  void track(int index, const at::Tensor& gradient, bool averaged);

  std::vector<NamedParameter> parameters_;
  std::vector<State> states_;
};

}  // namespace tutti::sync
