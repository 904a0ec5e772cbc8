#pragma once
#include <cstdint>
#include <string>

#include "model.h"

namespace gpt {

struct GenerateOptions {
  std::string prompt = "#include <";  ///< not empty
  std::int64_t bytes = 500;           ///< how many to write after the prompt
  double temperature = 0.8;           ///< below 1 keeps to what is likely, 0 always takes the likeliest
  std::uint64_t seed = 0;
};

/// The prompt and what the model writes after it, byte by byte. Control characters other than newline and tab come out
/// as '?': a terminal would obey them.
std::string generate(Gpt& model, const GenerateOptions& options);

}  // namespace gpt
