#pragma once
// One fragment of the model: the flat vector that is sent, the anchor, the outer momentum. Of the training thread, but
// for the vector while an exchange is in flight.
#include <ATen/core/TensorBody.h>

#include <vector>

#include "local_sgd/fragment_plan.h"
#include "local_sgd/trained_parameters.h"
#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

class Fragment {
 public:
  /// `flat` is fp32 memory of the plan's length. The anchor is the parameters' values now. `parameters` and `options`
  /// must outlive it.
  Fragment(FragmentPlan plan, const TrainedParameters& parameters, const LocalSgdAlgorithmOptions& options,
           at::Tensor flat);

  /// Whether vectors are differences from an anchor: where precision or the method demand it.
  static bool needs_anchor(const TrainedParameters& parameters, const LocalSgdAlgorithmOptions& options);

  std::int64_t elements() const { return plan_.elements; }
  const at::Tensor& flat() const { return flat_; }
  /// Undefined without one.
  const at::Tensor& anchor() const { return anchor_; }
  const at::Tensor& momentum() const { return momentum_; }
  /// The parameters when collect() was called last; undefined unless options ask for what was learned since.
  const at::Tensor& sent() const { return sent_; }

  /// The anchor becomes the parameters' values.
  void set_anchor();
  /// The vector becomes this rank's parameters, or their differences.
  void collect();
  /// The vector is the mean of a node alone: parameters become it, the anchor stays.
  void apply_node_mean();
  /// The vector is the mean of all ranks: the outer step, then parameters become the anchor, or what
  /// StreamingOptions make of both where the result is `late`. `inner_rates` by parameter, for SlowMo.
  void apply(bool late, const std::vector<double>& inner_rates);

 private:
  at::Tensor part(const at::Tensor& flat, const Piece& piece) const;

  FragmentPlan plan_;
  const TrainedParameters& parameters_;
  const LocalSgdAlgorithmOptions& options_;
  at::Tensor flat_;
  at::Tensor anchor_;
  at::Tensor momentum_;
  at::Tensor sent_;
};

}  // namespace tutti::local_sgd
