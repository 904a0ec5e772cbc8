#pragma once
// What ranks tell one another before an exchange: where they are, and what they weigh. Pure: every rank judges the same
// headers, so all reach the same decision.
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::local_sgd {

enum class ExchangeKind : std::int32_t { round, inside_node, finish, state };

/// Sent as it is: fixed width, no padding, no pointers.
struct ExchangeHeader {
  ExchangeKind kind = ExchangeKind::round;
  std::int32_t fragment = 0;
  std::int64_t step = 0;      ///< calls of step() so far
  std::int64_t elements = 0;  ///< of the vector
  std::uint64_t check = 0;    ///< whatever else must be equal
  double weight = 0;          ///< in this exchange
  double round_weight = 0;    ///< since all ranks met last
};

/// What becomes of each rank's vector: their sum, each times its factor, times `scale` is the mean.
struct WeightShares {
  std::vector<float> factors;  ///< in [0, 1]; all 1 where ranks weigh the same
  double scale = 1;
  double round_weight = 0;  ///< of all ranks together
};

/// Throws MismatchError where ranks are at different places. Ranks that all weigh 0 are a UsageError, unless
/// `zero_is_equal`: then they count alike.
WeightShares validate(std::span<const ExchangeHeader> headers, bool zero_is_equal);

}  // namespace tutti::local_sgd
