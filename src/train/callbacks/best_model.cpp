#include "tutti/train/callbacks/best_model.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "checkpoint/reservation.h"
#include "train/callbacks/metric.h"
#include "tutti/checkpoint/model_file.h"
#include "tutti/core/error.h"
#include "tutti/train/trainer_context.h"

namespace tutti {
namespace {

/// The right to write `file`, for which another job may have to finish its save. None after a minute: a file system
/// without locks does not tell whether a process of another machine has exited.
std::optional<checkpoint::Reservation> wait_for_right(const std::filesystem::path& file) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (;;) {
    auto reservation = checkpoint::Reservation::try_take(file);
    if (reservation || std::chrono::steady_clock::now() >= end) return reservation;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

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

std::filesystem::path BestModel::file_of(TrainerContext& trainer) const {
  if (!options_.file.empty()) return options_.file;
  const std::filesystem::path& project = trainer.accelerator().project().project_dir;
  if (project.empty()) throw UsageError("BestModel: name a file, or set AcceleratorOptions::project.project_dir");
  return project / (options_.name + ".safetensors");
}

void BestModel::on_fit_start(TrainerContext& trainer) {
  file_of(trainer);  // throws if there is none
}

void BestModel::on_evaluate_end(TrainerContext& trainer, const Scalars& results) {
  const double value = metric_in(results, options_.metric, "BestModel");
  if (!is_better(value, best_, options_.lower_is_better)) return;
  best_ = value;
  const std::filesystem::path file = file_of(trainer);
  if (!trainer.accelerator().is_main_process()) return;
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path());
  // What a killed process left of this file. Another job may write a file of this name at the same time: the right is
  // kept until the file is written, so that the other job does not remove it as a leftover.
  const auto reservation = wait_for_right(file);
  if (reservation) reservation->remove_leftovers();
  save_model(trainer.model(), file);
}

}  // namespace tutti
