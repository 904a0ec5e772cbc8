#pragma once
// The precision of forward passes.
#include <optional>
#include <string_view>

namespace tutti {

/// The names of Accelerate's mixed_precision. Parameters, gradients and optimizer state stay float32.
enum class Precision {
  no,    ///< precision of the model
  fp16,  ///< float16 under autocast, with a loss scaler
  bf16,  ///< bfloat16 under autocast
};

/// "no", "fp16" or "bf16".
std::string_view to_string(Precision precision);
/// The inverse of to_string(); nullopt for other texts.
std::optional<Precision> parse_precision(std::string_view text);

}  // namespace tutti
