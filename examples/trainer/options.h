#pragma once
#include <tutti/amp/precision.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "gpt/model.h"

namespace gpt {

struct TrainerProgramOptions {
  std::filesystem::path data;
  std::filesystem::path project = "runs/trainer";
  GptOptions model{.width = 128, .layers = 3, .heads = 4, .context = 64};
  std::int64_t steps = 600;     ///< optimizer steps
  std::int64_t batch_size = 4;  ///< windows in a micro-batch of a rank
  int accumulation = 4;         ///< micro-batches of a rank in a step
  double learning_rate = 6e-3;
  std::int64_t warmup = 40;
  double weight_decay = 0.1;
  double max_grad_norm = 1.0;
  std::uint64_t seed = 1;
  tutti::Precision precision = tutti::Precision::no;
  std::int64_t log_every = 10;
  std::int64_t evaluate_every = 100;
  std::int64_t save_every = 100;
  int keep_last = 2;
  int patience = 0;  ///< evaluations without progress that end the run; 0: never
  double ema = 0;    ///< decay of the averaged weights; 0: none
  bool resume = false;
  bool tensorboard = false;
};

/// Returns nullopt after --help. Throws tutti::UsageError.
std::optional<TrainerProgramOptions> parse_trainer_options(int argc, char** argv);

}  // namespace gpt
