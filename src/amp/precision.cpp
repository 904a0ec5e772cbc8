#include "tutti/amp/precision.h"

namespace tutti {

std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::fp16:
      return "fp16";
    case Precision::bf16:
      return "bf16";
    default:
      return "no";
  }
}

std::optional<Precision> parse_precision(std::string_view text) {
  for (const Precision precision : {Precision::no, Precision::fp16, Precision::bf16}) {
    if (text == to_string(precision)) return precision;
  }
  return std::nullopt;
}

}  // namespace tutti
