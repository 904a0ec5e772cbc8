#pragma once
// In what precision a forward pass computes.
#include <optional>
#include <string_view>

namespace tutti {

/// The names of Accelerate's mixed_precision. Parameters, gradients and optimizer state stay float32.
enum class Precision {
  no,    ///< as the model is
  fp16,  ///< float16 under autocast, with a loss scaler
  bf16,  ///< bfloat16 under autocast
};

/// "no", "fp16" or "bf16".
std::string_view to_string(Precision precision);
/// nullopt for anything but "no", "fp16", "bf16".
std::optional<Precision> parse_precision(std::string_view text);

}  // namespace tutti
