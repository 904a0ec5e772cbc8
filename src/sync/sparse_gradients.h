#pragma once
// The gradients of parameters of which a pass uses a few rows (torch::nn::Embedding with sparse(true)). They have no
// slot in the flat memory. .grad is a coalesced sparse tensor; a synchronization sends only the used rows, at the end
// of a pass. Not thread safe.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/detail/sync/named_parameter.h"

namespace tutti::sync {

class SparseGradients {
 public:
  explicit SparseGradients(std::vector<NamedParameter> parameters);

  int count() const { return static_cast<int>(parameters_.size()); }
  const at::Tensor& parameter(int index) const { return parameters_[index].tensor; }
  const at::Tensor& gradient(int index) const { return parameters_[index].tensor.grad(); }

  /// Must be called after autograd has added to the gradient. Throws UsageError if it is not sparse in its rows.
  void on_gradient(int index);
  /// Converts a mean to this rank's local share by multiplying it by `factor`. Does nothing to a local share.
  void to_local_share(int index, double factor);
  /// Multiplies all local shares by `factor`.
  void scale_local_shares(double factor);
  /// Sets the gradient to `mean`, the mean over ranks; undefined if no rank has a gradient.
  void set_mean(int index, const at::Tensor& mean);
  /// Restores a gradient of a state_dict(), which is dense.
  void load(int index, const at::Tensor& gradient, bool averaged);

  /// Whether the gradient is the mean over ranks.
  bool averaged(int index) const { return states_[index].averaged; }
  /// Whether autograd or a synchronization has set a gradient, even if .grad has been replaced since.
  bool is_tracked(int index) const { return states_[index].tracked.defined(); }
  /// The name of a parameter with a tracked gradient whose .grad is defined; nullopt if none.
  std::optional<std::string> carried_over() const;
  /// Whether .grad is the tracked gradient.
  bool is_tracked_gradient(int index) const { return gradient(index).is_same(states_[index].tracked); }
  /// The name of a parameter whose tracked gradient was replaced or written to; nullopt if none.
  std::optional<std::string> modified() const;
  /// Stops tracking gradients that the program has cleared.
  void untrack_cleared();
  /// Stops tracking all gradients.
  void untrack_all();

 private:
  struct State {
    at::Tensor tracked{};      // the gradient that autograd or a synchronization set
    std::int64_t version = 0;  // its version at that time
    bool averaged = false;
  };
  void track(int index, const at::Tensor& gradient, bool averaged);

  std::vector<NamedParameter> parameters_;
  std::vector<State> states_;
};

}  // namespace tutti::sync
