#include "tutti/amp/precision.h"

#include <array>

namespace tutti {

std::string_view to_string(Precision precision) {
  constexpr std::array names{"no", "fp16", "bf16"};
  return names.at(static_cast<std::size_t>(precision));
}

std::optional<Precision> parse_precision(std::string_view text) {
  for (const Precision precision : {Precision::no, Precision::fp16, Precision::bf16}) {
    if (text == to_string(precision)) return precision;
  }
  return std::nullopt;
}

}  // namespace tutti
