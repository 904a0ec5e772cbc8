#include "tracking/report/series.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tutti::series_test {
namespace {

const double not_a_number = std::nan("");

std::vector<Point> points_of(std::size_t count, double (*value)(double)) {
  std::vector<Point> points;
  for (std::size_t i = 0; i < count; ++i)
    points.push_back({static_cast<std::int64_t>(i), value(static_cast<double>(i))});
  return points;
}

double noise(double i) {
  return std::fmod(i * 7919, 101) / 101;
}

TEST(ShownPoints, AreAllPointsIfTheyAreFew) {
  EXPECT_EQ(shown_points({{0, 1}, {1, 2}, {2, 3}}, 10), (std::vector<std::size_t>{0, 1, 2}));
}

TEST(ShownPoints, KeepSpikesOfBothKinds) {
  auto points = points_of(100'000, noise);
  points[31'234].value = 50;
  points[77'777].value = -50;
  const auto shown = shown_points(points, 1000);
  EXPECT_LE(shown.size(), 1002U);
  EXPECT_GE(shown.size(), 900U);
  EXPECT_EQ(shown.front(), 0U);
  EXPECT_EQ(shown.back(), points.size() - 1);
  EXPECT_TRUE(std::is_sorted(shown.begin(), shown.end()));
  EXPECT_EQ(std::count(shown.begin(), shown.end(), 31'234), 1);
  EXPECT_EQ(std::count(shown.begin(), shown.end(), 77'777), 1);
}

TEST(ShownPoints, SpreadOverTheStepsAndNotOverTheCount) {
  auto points = points_of(2000, noise);
  for (std::size_t i = 1000; i < 2000; ++i) points[i].step = static_cast<std::int64_t>(100 * i);
  const auto shown = shown_points(points, 100);
  EXPECT_LT(std::count_if(shown.begin(), shown.end(), [](auto i) { return i < 1000; }), 5);
}

TEST(ShownPoints, OmitValuesThatAreNotFinite) {
  EXPECT_EQ(shown_points({{0, not_a_number}, {1, 2}, {2, std::numeric_limits<double>::infinity()}}, 10),
            (std::vector<std::size_t>{1}));
  EXPECT_TRUE(shown_points({{0, not_a_number}}, 10).empty());
}

TEST(IsNoisy, TellsMeasurementsFromSchedules) {
  EXPECT_TRUE(is_noisy(points_of(200, noise)));
  EXPECT_FALSE(is_noisy(points_of(200, [](double i) { return std::cos(i / 100); })));
  EXPECT_FALSE(is_noisy(points_of(200, [](double i) { return i < 100 ? 1.0 : 0.1; })));
  EXPECT_FALSE(is_noisy(points_of(200, [](double) { return 3.0; })));
  EXPECT_FALSE(is_noisy(points_of(10, noise)));
}

TEST(Smoothed, BeginsWithTheFirstValueAndFindsTheMean) {
  const auto line = smoothed(points_of(5000, noise), 200);
  EXPECT_DOUBLE_EQ(line.front(), noise(0));
  EXPECT_NEAR(line.back(), 0.495, 0.02);
}

TEST(Smoothed, KeepsAConstant) {
  for (const double value : smoothed(points_of(100, [](double) { return 3.0; }), 20)) EXPECT_DOUBLE_EQ(value, 3);
}

TEST(Smoothed, FollowsAChangeWithinAFewWindows) {
  const auto line = smoothed(points_of(2000, [](double i) { return i < 1000 ? 0.0 : 1.0; }), 20);
  EXPECT_LT(line[1005], 0.6);
  EXPECT_GT(line[1080], 0.99);
}

TEST(Smoothed, SkipsValuesThatAreNotFinite) {
  const auto line = smoothed({{0, 1}, {1, not_a_number}, {2, 1}}, 10);
  EXPECT_DOUBLE_EQ(line[0], 1);
  EXPECT_TRUE(std::isnan(line[1]));
  EXPECT_DOUBLE_EQ(line[2], 1);
}

TEST(FiniteRange, IsUnsetWithoutFiniteValues) {
  EXPECT_EQ(finite_range({{0, not_a_number}}), std::nullopt);
  EXPECT_EQ(finite_range({{0, 2}, {1, not_a_number}, {2, -1}}), (std::pair{-1.0, 2.0}));
}

}  // namespace
}  // namespace tutti::series_test
