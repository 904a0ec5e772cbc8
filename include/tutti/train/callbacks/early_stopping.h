#pragma once
// Ends a run that no longer gets better.
//
// Prechelt, "Early Stopping - But When?", in Neural Networks: Tricks of the Trade, 1998.
#include <string>

#include "tutti/train/callback.h"

namespace tutti {

/// What EarlyStopping is told.
struct EarlyStoppingOptions {
  /// The evaluation result that it follows.
  std::string metric = "eval/loss";
  /// Whether a lower result is the better one.
  bool lower_is_better = true;
  /// Evaluations in a row without progress after which the run ends; at least 1.
  int patience = 3;
  /// What counts as progress.
  double min_delta = 0;
};

/// A run that it has ended stays ended when it is resumed, unless there is more patience then. NaN is no progress.
/// Throws UsageError in on_evaluate_end for a metric that no evaluation result is called.
class EarlyStopping final : public Callback {
 public:
  /// Throws UsageError for a patience below 1 or a negative min_delta. Give it to Trainer::add_callback() on every
  /// rank.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  std::string name() const override { return "early_stopping"; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void on_fit_start(TrainerContext& trainer) override;
  void on_evaluate_end(TrainerContext& trainer, const Scalars& results) override;

  /// Evaluations in a row without progress.
  std::int64_t bad_evaluations() const { return bad_; }

 private:
  EarlyStoppingOptions options_;
  double best_;
  std::int64_t bad_ = 0;
};

}  // namespace tutti
