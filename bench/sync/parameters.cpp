#include "sync/parameters.h"

#include <cmath>
#include <cstddef>
#include <string_view>

namespace tutti::bench {
namespace {

double squared_distance(const at::Tensor& one, const at::Tensor& other) {
  return one.to(at::kDouble).sub(other.to(at::kDouble)).square().sum().item().toDouble();
}

}  // namespace

Parameters copy_of(const Parameters& parameters) {
  Parameters copies;
  for (const auto& parameter : parameters) copies.push_back(parameter.detach().clone());
  return copies;
}

std::int64_t bytes_of(const Parameters& parameters) {
  std::int64_t bytes = 0;
  for (const auto& parameter : parameters) bytes += static_cast<std::int64_t>(parameter.nbytes());
  return bytes;
}

std::uint64_t digest(const Parameters& parameters) {
  std::uint64_t result = 14695981039346656037U;  // FNV-1a
  for (const auto& parameter : parameters) {
    const auto flat = parameter.detach().contiguous();
    for (const unsigned char byte : std::string_view(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes())) {
      result = (result ^ byte) * 1099511628211U;
    }
  }
  return result;
}

double relative_distance(const Parameters& one, const Parameters& other, const Parameters& start) {
  double apart = 0;
  double gone = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    apart += squared_distance(one[i], other[i]);
    gone += squared_distance(other[i], start[i]);
  }
  return std::sqrt(apart / gone);
}

}  // namespace tutti::bench
