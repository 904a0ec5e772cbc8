#include "tracking/report/curves.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tracking/xml.h"

namespace tutti::curves_test {
namespace {

using test::count_of;

RunRecord run_with(const std::string& scalar, std::vector<Point> points) {
  RunRecord run{.name = "run", .series = {{scalar, std::move(points)}}, .session_steps = {0}};
  run.last_step = run.series[0].points.back().step;
  return run;
}

std::vector<Point> noisy(std::size_t count) {
  std::vector<Point> points;
  for (std::size_t i = 0; i < count; ++i)
    points.push_back({static_cast<std::int64_t>(i), 2.0 + (i * 7919 % 101) / 100.0});
  return points;
}

TEST(CurveFigure, OverlaysTheRunsThatHaveTheScalar) {
  const std::vector<RunRecord> runs{run_with("loss", {{1, 1}, {2, 2}}), run_with("lr", {{1, 1}}),
                                    run_with("loss", {{1, 3}})};
  const auto html = curve_figure("loss", runs, ChartSize::wide);
  EXPECT_EQ(test::xml_problem(html), "");
  EXPECT_EQ(count_of(html, "class=\"curve run0\""), 1);
  EXPECT_EQ(count_of(html, "class=\"curve run1\""), 0);
  EXPECT_EQ(count_of(html, "class=\"curve run2\""), 1);
  EXPECT_EQ(count_of(html, "<li>"), 2);
  EXPECT_EQ(curve_figure("missing", runs, ChartSize::wide), "");
}

TEST(CurveFigure, DrawsASmoothLineOverNoise) {
  const auto html = curve_figure("loss", {run_with("loss", noisy(5000))}, ChartSize::wide);
  EXPECT_EQ(count_of(html, "<path class=\"line raw\""), 1);
  EXPECT_EQ(count_of(html, "data-smooth"), 1);
  EXPECT_LT(html.size(), 100'000U);
  EXPECT_EQ(count_of(curve_figure("loss", {run_with("loss", {{1, 1}, {2, 3}})}, ChartSize::wide), "line raw"), 0);
}

TEST(CurveFigure, UsesALogarithmicScaleForLossesThatFallFar) {
  const auto is_log = [](const std::string& scalar, std::vector<Point> points) {
    return count_of(curve_figure(scalar, {run_with(scalar, std::move(points))}, ChartSize::half), "data-log") == 1;
  };
  EXPECT_TRUE(is_log("loss", {{1, 10}, {2, 0.1}}));
  EXPECT_TRUE(is_log("eval/loss", {{1, 10}, {2, 0.1}}));
  EXPECT_FALSE(is_log("loss", {{1, 10}, {2, 8}}));
  EXPECT_FALSE(is_log("loss", {{1, 10}, {2, 0}}));
  EXPECT_FALSE(is_log("loss", {{1, 10}, {2, -0.1}}));
  EXPECT_FALSE(is_log("lr", {{1, 10}, {2, 0.1}}));
}

TEST(CurveFigure, MarksValuesThatAreNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto html = curve_figure(
      "loss", {run_with("loss", {{0, 1}, {100, std::nan("")}, {200, infinity}, {300, -infinity}, {400, 2}})},
      ChartSize::wide);
  EXPECT_EQ(test::xml_problem(html), "");
  EXPECT_EQ(count_of(html, "class=\"lost\""), 3);
  EXPECT_EQ(count_of(html, "run: NaN at step 100"), 1) << html;
  EXPECT_EQ(count_of(html, "3 not finite, first at step 100"), 1);
  // The line is interrupted at the gap.
  const auto line = html.find("<path class=\"line\" d=\"M52 ");
  ASSERT_NE(line, std::string::npos) << html;
  const auto path = html.substr(line, html.find("/>", line) - line);
  EXPECT_EQ(count_of(path, "M"), 2) << path;
  EXPECT_EQ(count_of(path, "L"), 0) << path;
}

TEST(CurveFigure, JoinsMarksThatWouldOverlap) {
  std::vector<Point> points{{0, 1}};
  for (int step = 1; step <= 10'000; ++step) points.push_back({step, std::nan("")});
  const auto html = curve_figure("loss", {run_with("loss", points)}, ChartSize::half);
  EXPECT_LT(count_of(html, "class=\"lost\""), 60);
  EXPECT_GT(count_of(html, "class=\"lost\""), 40);
}

TEST(CurveFigure, SupportsRunsWithNothingToDraw) {
  for (const auto& points : {std::vector<Point>{{0, std::nan("")}}, std::vector<Point>{{7, 0.0}},
                             std::vector<Point>{{1, 5.0}, {2, 5.0}}, std::vector<Point>{{0, 1e300}, {1, -1e300}}}) {
    const auto html = curve_figure("loss", {run_with("loss", points)}, ChartSize::half);
    EXPECT_EQ(test::xml_problem(html), "");
    EXPECT_EQ(count_of(html, "nan"), 0) << html;
    EXPECT_EQ(count_of(html, "inf"), 0) << html;
  }
}

// The margins and differences of such values exceed the largest double.
TEST(CurveFigure, DrawsValuesAtTheEndsOfTheRangeOfADouble) {
  const double least = std::numeric_limits<double>::denorm_min();
  for (const char* scalar : {"perplexity", "value"}) {
    for (const auto& [first, second] :
         {std::pair(10.0, 1e304), std::pair(1e-300, 1e300), std::pair(least, 1.79e308), std::pair(1e308, 1.79e308),
          std::pair(-1e308, 1.79e308), std::pair(1.79e308, 1.79e308), std::pair(-least, 0.0), std::pair(least, least),
          std::pair(least, 1e-309)}) {
      const auto html = curve_figure(scalar, {run_with(scalar, {{1, first}, {2, second}})}, ChartSize::half);
      EXPECT_EQ(test::xml_problem(html), "");
      EXPECT_EQ(count_of(html, "nan") + count_of(html, "inf"), 0) << html;
      EXPECT_LT(count_of(html, "tick row"), 20) << html;
    }
  }
}

TEST(CurveFigure, MarksWhereARunResumed) {
  auto run = run_with("loss", {{10, 1}, {100, 2}});
  run.session_steps = {0, 50};
  const auto html = curve_figure("loss", {run}, ChartSize::wide);
  EXPECT_EQ(count_of(html, "class=\"resumed\""), 1);
  EXPECT_EQ(count_of(html, "run resumed from step 50"), 1);
}

TEST(CurveFigure, NamesTheStepAxis) {
  EXPECT_EQ(
      count_of(curve_figure("loss", {run_with("loss", {{1, 1}, {2, 2}})}, ChartSize::half), ">optimizer step</text>"),
      1);
}

TEST(CurveFigure, DrawsTheClippedNormIntoTheFigureOfTheNorm) {
  auto run = run_with("grad_norm", {{1, 4}, {2, 1}});
  run.series.push_back({"grad_norm_post_clip", {{1, 2}, {2, 1}}});
  const auto html = curve_figure("grad_norm", {run}, ChartSize::half);
  EXPECT_EQ(test::xml_problem(html), "");
  EXPECT_EQ(count_of(html, "class=\"curve run0 companion\""), 1) << html;
  EXPECT_EQ(count_of(html, "data-name=\"run, after clipping\""), 1) << html;
  run.series.back().points = run.series.front().points;  // no step was clipped
  EXPECT_EQ(count_of(curve_figure("grad_norm", {run}, ChartSize::half), "companion"), 0);
}

TEST(CurveFigure, EscapesNames) {
  auto run = run_with("a\"<&>'b", {{1, 1}, {2, 2}});
  run.name = "\"<script>&'";
  const auto html = curve_figure("a\"<&>'b", {run}, ChartSize::wide);
  EXPECT_EQ(test::xml_problem(html), "");
  EXPECT_EQ(count_of(html, "<script>"), 0);
}

}  // namespace
}  // namespace tutti::curves_test
