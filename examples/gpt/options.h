#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>

#include "generate.h"
#include "model.h"

namespace gpt {

/// The defaults train for two to three minutes on two cores.
struct Options {
  std::filesystem::path data;
  GptOptions model{.width = 128, .layers = 3, .heads = 4, .context = 64};
  std::int64_t steps = 2200;    ///< optimizer steps
  std::int64_t batch_size = 4;  ///< windows in a micro-batch of a rank
  int accumulation = 4;         ///< micro-batches of a rank in a step
  double learning_rate = 6e-3;
  std::int64_t warmup = 80;  ///< steps until the peak learning rate
  double weight_decay = 0.1;
  double max_gradient_norm = 1.0;
  std::uint64_t seed = 1;
  GenerateOptions sample;
};

/// An invalid command line.
class OptionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Returns nullopt after --help. Throws OptionError.
std::optional<Options> parse_options(int argc, char** argv);

}  // namespace gpt
