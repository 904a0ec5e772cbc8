// validate() compares the headers of all ranks and computes the weights.
#include "local_sgd/exchange_header.h"

#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti::local_sgd::exchange_header_test {
namespace {

ExchangeHeader at_step(std::int64_t step, double weight) {
  return {.kind = ExchangeKind::round, .step = step, .elements = 7, .weight = weight, .round_weight = 10 * weight};
}

TEST(ExchangeHeader, EqualWeightsHaveEqualFactors) {
  const ExchangeHeader headers[] = {at_step(4, 3), at_step(4, 3), at_step(4, 3)};
  const WeightShares shares = validate(headers, false);
  EXPECT_EQ(shares.factors, (std::vector<float>{1, 1, 1}));
  EXPECT_DOUBLE_EQ(shares.scale, 1.0 / 3);
  EXPECT_DOUBLE_EQ(shares.round_weight, 90);
}

TEST(ExchangeHeader, WeightsAddUpToOne) {
  const ExchangeHeader headers[] = {at_step(4, 1e300), at_step(4, 0), at_step(4, 0.5e300)};
  const WeightShares shares = validate(headers, false);
  EXPECT_EQ(shares.factors, (std::vector<float>{1, 0, 0.5}));
  EXPECT_DOUBLE_EQ(shares.scale * 1.5, 1);
}

TEST(ExchangeHeader, RefusesZeroWeightsOnAllRanks) {
  const ExchangeHeader headers[] = {at_step(4, 0), at_step(4, 0)};
  EXPECT_THROW(validate(headers, false), UsageError);
  EXPECT_EQ(validate(headers, true).factors, (std::vector<float>{1, 1}));
}

TEST(ExchangeHeader, FindsRanksAtDifferentSteps) {
  const ExchangeHeader other_step[] = {at_step(4, 1), at_step(5, 1)};
  EXPECT_THROW(validate(other_step, false), MismatchError);
  ExchangeHeader finish = at_step(4, 1);
  finish.kind = ExchangeKind::finish;
  const ExchangeHeader other_kind[] = {at_step(4, 1), finish};
  EXPECT_THROW(validate(other_kind, false), MismatchError);
  ExchangeHeader second = at_step(4, 1);
  second.fragment = 1;
  const ExchangeHeader other_fragment[] = {at_step(4, 1), second};
  EXPECT_THROW(validate(other_fragment, false), MismatchError);
  ExchangeHeader checked = at_step(4, 1);
  checked.check = 1;
  const ExchangeHeader other_check[] = {at_step(4, 1), checked};
  EXPECT_THROW(validate(other_check, false), MismatchError);
}

}  // namespace
}  // namespace tutti::local_sgd::exchange_header_test
