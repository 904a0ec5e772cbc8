#pragma once
// Ends a run whose evaluation results no longer improve.
//
// Prechelt, "Early Stopping - But When?", in Neural Networks: Tricks of the Trade, 1998.
#include <string>

#include "tutti/train/callback.h"

namespace tutti {

/// Options of EarlyStopping.
struct EarlyStoppingOptions {
  /// The evaluation result to compare.
  std::string metric = "eval/loss";
  /// True if a lower result is better.
  bool lower_is_better = true;
  /// Number of consecutive evaluations without progress after which the run ends; at least 1.
  int patience = 3;
  /// Progress is an improvement by more than this.
  double min_delta = 0;
  /// The name of the callback's state in checkpoints. Several callbacks of this class need different names.
  std::string name = "early_stopping";
};

/// The evaluation at the end of a run counts too: a run that is continued with more steps may have one evaluation more
/// than an uninterrupted one. A run that EarlyStopping ended stays ended when it is resumed, unless `patience` has been
/// increased. NaN is not progress. on_evaluate_end throws UsageError if no evaluation result has the name `metric`.
class EarlyStopping final : public Callback {
 public:
  /// Throws UsageError for a patience below 1 or a negative min_delta. Pass it to Trainer::add_callback() on every
  /// rank.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  std::string name() const override { return options_.name; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void on_fit_start(TrainerContext& trainer) override;
  void on_evaluate_end(TrainerContext& trainer, const Scalars& results) override;

  /// Number of consecutive evaluations without progress.
  std::int64_t bad_evaluations() const { return bad_; }

 private:
  EarlyStoppingOptions options_;
  double best_;
  std::int64_t bad_ = 0;
};

}  // namespace tutti
