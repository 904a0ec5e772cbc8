#pragma once
// The options of `tutti bench local-sgd`.
#include <cstdint>
#include <string>
#include <vector>

#include "command/arguments.h"

namespace tutti::bench {

struct LocalSGDBenchOptions : CommonOptions, Place {
  std::string data;  ///< file or folder of text
  std::int64_t steps = 500;
  std::int64_t local_steps = 21;
  std::int64_t batch_size = 4;
  std::int64_t width = 128;
  std::int64_t layers = 3;
  std::int64_t context = 64;
  double learning_rate = 3e-3;
  double outer_learning_rate = 0.7;
  double outer_momentum = 0.6;
  int seeds = 3;
  /// Report the loss on the half of the held-out text on which hyperparameters are chosen, not on the other half.
  bool validate = false;
  std::vector<std::string> methods{};  ///< empty: all methods
  std::string picture;
  std::string from;  ///< file of rows to draw; nothing is run
};

}  // namespace tutti::bench
