#pragma once
#include <cstdint>
#include <string>

#include "model.h"

namespace gpt {

struct GenerateOptions {
  std::string prompt = "#include <";  ///< not empty
  std::int64_t bytes = 500;           ///< number of bytes after the prompt
  double temperature = 0.8;           ///< below 1 favors likely bytes, 0 always takes the likeliest
  std::uint64_t seed = 0;
};

/// Returns the prompt and the bytes that the model generates after it. Control characters other than newline and tab
/// are replaced by '?', because a terminal would interpret them.
std::string generate(Gpt& model, const GenerateOptions& options);

}  // namespace gpt
