#pragma once
// Keeps the model of the best evaluation as one file.
#include <filesystem>
#include <string>

#include "tutti/train/callback.h"

namespace tutti {

/// What BestModel is told.
struct BestModelOptions {
  /// The evaluation result that decides; UsageError in on_evaluate_end where none has this name.
  std::string metric = "eval/loss";
  /// Whether a lower result is the better one.
  bool lower_is_better = true;
  /// The safetensors file. Empty: best_model.safetensors in the project's folder.
  std::filesystem::path file{};
};

/// The main process writes it, whole or not at all. Where an Ema evaluates its average, add BestModel before it: the
/// Ema puts the parameters back when its turn comes, and what was evaluated is what should be kept.
class BestModel final : public Callback {
 public:
  /// Give it to Trainer::add_callback() on every rank.
  explicit BestModel(BestModelOptions options = {});

  std::string name() const override { return "best_model"; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void on_evaluate_end(TrainerContext& trainer, const Scalars& results) override;

  /// The best result so far; infinity (minus infinity where higher is better) before the first.
  double best() const { return best_; }

 private:
  BestModelOptions options_;
  double best_;
};

}  // namespace tutti
