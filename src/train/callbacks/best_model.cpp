#include "tutti/train/callbacks/best_model.h"

#include <utility>

#include "checkpoint/reservation.h"
#include "train/callbacks/metric.h"
#include "tutti/checkpoint/model_file.h"
#include "tutti/core/error.h"
#include "tutti/train/trainer_context.h"

namespace tutti {

BestModel::BestModel(BestModelOptions options)
    : options_(std::move(options)), best_(worst_metric(options_.lower_is_better)) {}

StateDict BestModel::state_dict() const {
  StateDict state;
  state.set("best", best_);
  return state;
}

void BestModel::load_state_dict(const StateDict& state) {
  best_ = state.get<double>("best");
}

void BestModel::on_evaluate_end(TrainerContext& trainer, const Scalars& results) {
  const double value = metric_in(results, options_.metric, "BestModel");
  if (!is_better(value, best_, options_.lower_is_better)) return;
  best_ = value;
  if (!trainer.accelerator().is_main_process()) return;
  std::filesystem::path file = options_.file;
  if (file.empty()) {
    const std::filesystem::path& project = trainer.accelerator().project().project_dir;
    if (project.empty()) throw UsageError("BestModel: name a file, or set AcceleratorOptions::project.project_dir");
    file = project / "best_model.safetensors";
  }
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path());
  // What a killed process left of this file. Another job may write a file of this name at the same time.
  if (const auto reservation = checkpoint::Reservation::try_take(file)) reservation->remove_leftovers();
  save_model(trainer.model(), file);
}

}  // namespace tutti
