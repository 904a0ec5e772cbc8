#pragma once
// The header that each rank sends before an exchange: its step and its weight. No I/O. Every rank validates the same
// headers, so all ranks reach the same decision.
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::local_sgd {

enum class ExchangeKind : std::int32_t { round, inside_node, finish, state };

/// Sent as raw bytes: fixed width, no padding, no pointers.
struct ExchangeHeader {
  ExchangeKind kind = ExchangeKind::round;
  std::int32_t fragment = 0;
  std::int64_t step = 0;      ///< calls of step() so far
  std::int64_t elements = 0;  ///< length of the vector
  std::uint64_t check = 0;    ///< checksum of further values that must be equal
  double weight = 0;          ///< weight of this rank in this exchange
  double round_weight = 0;    ///< weight of this rank since the last average over all ranks
};

/// The weights of the mean: the sum of factors[rank] times the rank's vector, times `scale`.
struct WeightShares {
  std::vector<float> factors;  ///< in [0, 1]; all 1 if the weights are equal
  double scale = 1;
  double round_weight = 0;  ///< sum over all ranks
};

/// Throws MismatchError if ranks are at different steps. If all weights are 0, throws UsageError, or with
/// `zero_is_equal` gives all ranks equal weights.
WeightShares validate(std::span<const ExchangeHeader> headers, bool zero_is_equal);

}  // namespace tutti::local_sgd
