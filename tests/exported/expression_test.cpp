// Size expressions and their checked arithmetic. One rank.
#include "exported/expression.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "exported/checked_math.h"
#include "tutti/core/error.h"

namespace tutti::test::expression_test {
namespace {

using exported::Expression;

std::optional<std::int64_t> value(const std::string& text, std::int64_t s0 = 5) {
  return Expression::parse(text).evaluate([&](const std::string& name) -> std::optional<std::int64_t> {
    if (name == "s0") return s0;
    if (name == "L['x'].size()[1]") return 7;
    return std::nullopt;
  });
}

TEST(Expressions, BothFormsAreEvaluated) {
  EXPECT_EQ(value("Symbol('s0', positive=True, integer=True)"), 5);
  EXPECT_EQ(value("Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))"), 9);
  EXPECT_EQ(value("2*s0 - 3 - 1"), 6);
  EXPECT_EQ(value("-s0 // 2"), -3);
  EXPECT_EQ(value("-s0 % 3"), 1);
  EXPECT_EQ(value("2**3**2"), 512);
  EXPECT_EQ(value("(s0 + 1)/2"), 3);
  EXPECT_EQ(value("s0/2"), std::nullopt);
  EXPECT_EQ(value("Max(1, s0, 3) + Min(1, s0)"), 6);
  EXPECT_EQ(value("FloorDiv(s0, 2) + Mod(s0, 2) + PythonMod(-1, 4)"), 6);
  EXPECT_EQ(value("L['x'].size()[1] == 7 and not s0 < 5"), 1);
  EXPECT_EQ(value("1 <= s0 < 5"), 0);
  EXPECT_EQ(value("Eq(s0, 5) or Ne(s0, 5)"), 1);
  EXPECT_EQ(value("GreaterThan(Symbol('s0'), Integer(6))"), 0);
  EXPECT_EQ(value("u0 + 1"), std::nullopt);
}

TEST(Expressions, InvalidTextIsRejected) {
  for (const std::string text : {"", "s0 +", "(s0", "s0)", "2.5", "Evil('x')", "1 2", "Symbol(s0)", "Mod(1)", "L['x",
                                 "s0;", "99999999999999999999"}) {
    EXPECT_THROW(Expression::parse(text), CheckpointError) << text;
  }
  EXPECT_THROW(Expression::parse(std::string(10'000, '(')), CheckpointError);
  EXPECT_THROW(Expression::parse(std::string(10'000, '-') + "1"), CheckpointError);
}

// The depth of the tree is limited, because evaluate() is recursive.
TEST(Expressions, DeepTreesOfFewParenthesesAreRejected) {
  const auto nested = [](int levels, int factors) {
    std::string text = std::string(static_cast<std::size_t>(levels), '(') + "s0";
    for (int level = 0; level < levels; ++level) {
      for (int factor = 0; factor < factors; ++factor) text += "//1";
      text += ')';
    }
    return text;
  };
  EXPECT_EQ(value(nested(5, 30)), 5);
  EXPECT_THROW(value(nested(5, 60)), CheckpointError);
  std::string sum = "s0";
  for (int term = 0; term < 1000; ++term) sum += " + s0 * 2";
  EXPECT_EQ(value(sum), 10'005);
}

// A chain has its middle operand twice, so the tree of chains in chains is exponentially larger than the text.
TEST(Expressions, ChainsOfComparisonsInChainsAreRejected) {
  const auto nested = [](int levels) {
    std::string text = "s0";
    for (int level = 0; level < levels; ++level) text = "0<(" + text + ")<9";
    return text;
  };
  EXPECT_EQ(value(nested(1)), 1);
  EXPECT_EQ(value(nested(2)), 1);
  EXPECT_THROW(value(nested(16)), CheckpointError);
  EXPECT_EQ(value("2 <= s0 + 1 <= 9 and 2 <= s0 < 9 == 9"), 1);
}

TEST(Expressions, OverflowAndDivisionByZeroThrow) {
  constexpr auto most = std::numeric_limits<std::int64_t>::max(), least = std::numeric_limits<std::int64_t>::min();
  EXPECT_THROW(value("s0 + 1", most), UsageError);
  EXPECT_THROW(value("s0 * s0", most), UsageError);
  EXPECT_THROW(value("s0 // 0"), UsageError);
  EXPECT_THROW(value("s0 % 0"), UsageError);
  EXPECT_THROW(value("2**64"), UsageError);
  EXPECT_THROW(exported::checked_math::floor_divide(least, -1), UsageError);
  EXPECT_EQ(exported::checked_math::modulo(least, -1), 0);
  EXPECT_EQ(exported::checked_math::floor_divide(-7, 2), -4);
  EXPECT_EQ(exported::checked_math::modulo(7, -2), -1);
  EXPECT_EQ(exported::checked_math::power(-1, most), -1);
}

}  // namespace
}  // namespace tutti::test::expression_test
