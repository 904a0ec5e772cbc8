#pragma once
// What ranks compare in every synchronization besides the window and the trained parameters: parameters whose gradients
// the reducer does not synchronize, the options of the next step, the limits of clipping, and the position in the data.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sync/parameter_set.h"
#include "sync/replica_checker.h"
#include "sync/sync_header.h"
#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/reducer.h"

namespace tutti::sync {

class RankComparison {
 public:
  /// `batch_position` may be empty.
  RankComparison(bool enabled, std::function<BatchPosition()> batch_position);

  void enable(bool enabled);
  /// Compares `parameters` from now on.
  void compare(std::vector<NamedParameter> parameters);
  void set_step_options(StepOptions options) { step_options_ = std::move(options); }
  /// The gradients of the window were limited.
  void on_clip(const char* name, double limit) { clippings_.push_back({.name = name, .limit = limit}); }
  /// The gradients of the window were cleared, or a window begins.
  void on_clear() { clippings_.clear(); }
  /// A step has used the gradients of the window.
  void on_step();
  /// The last step of this rank is not that of the other ranks.
  void forget_last_step() { used_clippings_.clear(); }
  /// Positions are not compared any more. Every rank must call it, or the synchronizations tell the other ranks.
  void allow_different_batches() { batches_may_differ_ = true; }

  /// Sets the members of `header` that are compared, for a group of several ranks.
  void fill(SyncHeader& header);
  /// See ReplicaChecker; null if there are no parameters.
  DeviceSamples* samples() { return checker_ ? checker_->samples() : nullptr; }
  /// Returns what differs. Every rank must call it after a synchronization whose plan says that something differs.
  std::string describe_difference(const SyncPlan& plan, const Communicator& communicator) const;

 private:
  struct Clipping {
    const char* name;
    double limit;
  };
  /// The options of the next step, then the limits of clipping of the last one.
  void visit_step_options(const StepOptionSink& sink) const;

  bool enabled_;
  std::function<BatchPosition()> batch_position_;
  bool batches_may_differ_ = false;  // equal on all ranks after a synchronization
  ParameterSet parameters_{std::vector<NamedParameter>()};
  std::optional<ReplicaChecker> checker_;  // empty if there are no parameters
  StepOptions step_options_;
  std::vector<Clipping> clippings_;       // of the window
  std::vector<Clipping> used_clippings_;  // of the window that the last step has used
};

}  // namespace tutti::sync
