#pragma once
// Saves the model of the best evaluation to one file.
#include <filesystem>
#include <string>

#include "tutti/train/callback.h"

namespace tutti {

/// Options of BestModel.
struct BestModelOptions {
  /// The evaluation result to compare. on_evaluate_end throws UsageError if no result has this name.
  std::string metric = "eval/loss";
  /// True if a lower result is better.
  bool lower_is_better = true;
  /// The safetensors file. Empty: NAME.safetensors in the project's folder; fit() throws UsageError if there is none.
  std::filesystem::path file{};
  /// The name of the callback's state in checkpoints. Several callbacks of this class need different names.
  std::string name = "best_model";
};

/// The main process writes the file atomically. It holds the parameters that were evaluated: the average if an Ema
/// evaluates it, and rank 0's replica in local steps (LocalSGD).
class BestModel final : public Callback {
 public:
  /// Pass it to Trainer::add_callback() on every rank.
  explicit BestModel(BestModelOptions options = {});

  std::string name() const override { return options_.name; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void on_fit_start(TrainerContext& trainer) override;
  void on_evaluate_end(TrainerContext& trainer, const Scalars& results) override;

  /// The best result so far. Before the first one: infinity, or minus infinity if a higher result is better.
  double best() const { return best_; }

 private:
  std::filesystem::path file_of(TrainerContext& trainer) const;

  BestModelOptions options_;
  double best_;
};

}  // namespace tutti
