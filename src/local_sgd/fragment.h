#pragma once
// One fragment of the model: the flat vector that is sent, the anchor and the outer momentum. Used by the training
// thread. During an exchange the vector belongs to the communicator's thread.
//
// Vector, anchor and momentum are in CPU memory. Parameters on an accelerator are read and written through a staging
// buffer.
#include <ATen/core/TensorBody.h>

#include <memory>
#include <vector>

#include "local_sgd/fragment_plan.h"
#include "local_sgd/staging_buffer.h"
#include "local_sgd/trained_parameters.h"
#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

class Fragment {
 public:
  /// `flat` is fp32 memory of the plan's length. The anchor starts as the parameters' present values. `parameters` and
  /// `options` must outlive the fragment.
  Fragment(FragmentPlan plan, const TrainedParameters& parameters, const LocalSgdAlgorithmOptions& options,
           at::Tensor flat);

  /// True if the vectors are differences from an anchor, because precision or the method requires it.
  static bool needs_anchor(const TrainedParameters& parameters, const LocalSgdAlgorithmOptions& options);

  std::int64_t elements() const { return plan_.elements; }
  const at::Tensor& flat() const { return flat_; }
  /// Undefined without an anchor.
  const at::Tensor& anchor() const { return anchor_; }
  const at::Tensor& momentum() const { return momentum_; }
  /// The parameters at the last start_collect(). Defined only with StreamingOptions::keep_local_progress.
  const at::Tensor& sent() const { return sent_; }

  /// Copies the parameters to the anchor.
  void set_anchor();
  /// Copies the parameters, or their differences from the anchor, to the vector. Parameters on an accelerator begin to
  /// move to the host, and finish_collect() completes the vector.
  void start_collect();
  /// Before the exchange, on any thread. Blocks until the parameters have arrived on the host.
  void finish_collect();
  /// Takes the vector as the mean of a node: copies it to the parameters. The anchor does not change.
  void apply_node_mean();
  /// Takes the vector as the mean of all ranks: makes the outer step, then sets the parameters to the anchor. If the
  /// result is `late`, StreamingOptions determine the parameters. `inner_rates`: learning rate by parameter, for
  /// SlowMo.
  void apply(bool late, const std::vector<double>& inner_rates);

 private:
  at::Tensor part(const at::Tensor& flat, const Piece& piece) const;
  std::vector<at::Tensor> tensors() const;
  /// The parameter's elements, or their copy in the staging buffer.
  at::Tensor values_of(const Piece& piece) const;
  void collect();
  void write_staged(bool late);

  FragmentPlan plan_;
  const TrainedParameters& parameters_;
  const LocalSgdAlgorithmOptions& options_;
  at::Tensor flat_;
  at::Tensor anchor_;
  at::Tensor momentum_;
  at::Tensor sent_;
  std::unique_ptr<StagingBuffer> staging_;  ///< null if all parameters are in CPU memory
};

}  // namespace tutti::local_sgd
