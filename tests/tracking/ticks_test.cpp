#include "tracking/report/ticks.h"

#include <gtest/gtest.h>

namespace tutti::ticks_test {
namespace {

using Ticks = std::vector<double>;
using Labels = std::vector<std::string>;

void expect_near(const Ticks& ticks, const Ticks& expected) {
  ASSERT_EQ(ticks.size(), expected.size());
  for (std::size_t i = 0; i < ticks.size(); ++i) EXPECT_NEAR(ticks[i], expected[i], 1e-12);
}

TEST(LinearTicks, AreRoundNumbersInsideTheRange) {
  expect_near(linear_ticks(0, 4000, 8), {0, 500, 1000, 1500, 2000, 2500, 3000, 3500, 4000});
  expect_near(linear_ticks(0.13, 0.98, 4), {0.2, 0.4, 0.6, 0.8});
  expect_near(linear_ticks(-1.2, 1.2, 4), {-1, -0.5, 0, 0.5, 1});
}

TEST(LinearTicks, KeepTheEndsDespiteRounding) {
  expect_near(linear_ticks(0.1, 0.3, 2), {0.1, 0.2, 0.3});
}

TEST(LinearTicks, SupportAnEmptyRange) {
  EXPECT_EQ(linear_ticks(2, 2, 4), Ticks{2});
}

TEST(LogTicks, ArePowersOfTenOverDecades) {
  expect_near(log_ticks(0.0005, 20), {0.001, 0.01, 0.1, 1, 10});
}

TEST(LogTicks, AreFinerOverFewDecades) {
  expect_near(log_ticks(0.4, 16), {0.5, 1, 2, 5, 10});
  expect_near(log_ticks(1.2, 13), {1.5, 2, 3, 5, 7, 10});
}

TEST(LogTicks, SkipDecadesOfAWideRange) {
  expect_near(log_ticks(0.5, 2e24), {1, 1e3, 1e6, 1e9, 1e12, 1e15, 1e18, 1e21, 1e24});
}

TEST(TickLabels, HaveAsManyDecimalsAsTheyNeed) {
  EXPECT_EQ(tick_labels({0, 0.5, 1}), (Labels{"0", "0.5", "1.0"}));
  EXPECT_EQ(tick_labels({1.25, 1.5}), (Labels{"1.25", "1.50"}));
  EXPECT_EQ(tick_labels({-2, 0, 2}), (Labels{"\u2212"
                                             "2",
                                             "0", "2"}));
}

TEST(TickLabels, ShortenLargeAndSmallNumbers) {
  EXPECT_EQ(tick_labels({0, 5000}), (Labels{"0", "5000"}));
  EXPECT_EQ(tick_labels({0, 20'000}), (Labels{"0", "20k"}));
  EXPECT_EQ(tick_labels({500'000, 1'500'000}), (Labels{"0.5M", "1.5M"}));
  EXPECT_EQ(tick_labels({0, 1e-5, 2e-5}), (Labels{"0",
                                                  "1e\u2212"
                                                  "5",
                                                  "2e\u2212"
                                                  "5"}));
  EXPECT_EQ(tick_labels({0, 1.5e12, 3e12}), (Labels{"0", "1.5e12", "3e12"}));
  EXPECT_EQ(tick_labels({0.0002, 0.0004}), (Labels{"0.0002", "0.0004"}));
}

TEST(TickLabels, HaveTheirOwnDecimalsOnALogarithmicAxis) {
  EXPECT_EQ(tick_labels({0.5, 1, 2, 5, 10}), (Labels{"0.5", "1", "2", "5", "10"}));
}

TEST(Axis, PlacesValues) {
  const Axis down{.low = 0, .high = 10, .from = 100, .to = 0};
  EXPECT_DOUBLE_EQ(down.position(2.5), 75);
  const Axis log{.low = 1, .high = 100, .from = 0, .to = 10, .is_log = true};
  EXPECT_DOUBLE_EQ(log.position(10), 5);
}

}  // namespace
}  // namespace tutti::ticks_test
