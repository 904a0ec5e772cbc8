#include "tracking/report/step_times.h"

#include <gtest/gtest.h>

#include "tracking/xml.h"

namespace tutti::step_times_test {
namespace {

Series series(const std::string& name, std::vector<Point> points) {
  return {.name = name, .points = std::move(points)};
}

TEST(StepTimes, AreSecondsPerStep) {
  const RunRecord run{.series = {series("time/rank_0/forward", {{10, 2.0}, {20, 4.0}}),
                                 series("time/rank_0/waiting", {{10, 1.0}, {20, 1.0}}),
                                 series("time/rank_12/forward", {{10, 1.0}, {20, 1.0}})},
                      .session_steps = {0}};
  const auto times = step_times(run);
  ASSERT_EQ(times.size(), 2U);
  EXPECT_DOUBLE_EQ(times.at(0).at("forward"), 0.3);
  EXPECT_DOUBLE_EQ(times.at(0).at("waiting"), 0.1);
  EXPECT_DOUBLE_EQ(times.at(12).at("forward"), 0.1);
}

TEST(StepTimes, CountFromTheBeginningOfTheSession) {
  // The run resumed from step 15, so its next log covers five steps.
  const RunRecord run{.series = {series("time/rank_0/forward", {{10, 10.0}, {20, 5.0}})}, .session_steps = {0, 15}};
  EXPECT_DOUBLE_EQ(step_times(run).at(0).at("forward"), 1.0);
  const RunRecord late{.series = {series("time/rank_0/forward", {{110, 10.0}})}, .session_steps = {100}};
  EXPECT_DOUBLE_EQ(step_times(late).at(0).at("forward"), 1.0);
}

TEST(StepTimes, CountUnknownStagesAsOther) {
  const RunRecord run{
      .series = {series("time/rank_0/other", {{10, 1.0}}), series("time/rank_0/checkpoint", {{10, 2.0}})},
      .session_steps = {0}};
  EXPECT_DOUBLE_EQ(step_times(run).at(0).at("other"), 0.3);
}

TEST(StepTimes, KnowTheirNames) {
  EXPECT_TRUE(is_step_time("time/rank_3/data"));
  for (const auto* name : {"time/rank_x/data", "time/rank_3", "loss", "time/data"}) EXPECT_FALSE(is_step_time(name));
}

TEST(StepTimesFigure, HasABarForEachRankAndNamesTheSlowest) {
  RunRecord run{.name = "a<b",
                .series = {series("time/rank_0/forward", {{10, 1.0}}), series("time/rank_0/waiting", {{10, 1.0}}),
                           series("time/rank_1/forward", {{10, 2.0}}), series("time/rank_1/waiting", {{10, 0.001}})},
                .session_steps = {0}};
  const auto html = step_times_figure({run});
  EXPECT_EQ(test::xml_problem(html), "");
  EXPECT_EQ(test::count_of(html, ">rank 0</text>"), 1);
  EXPECT_EQ(test::count_of(html, ">rank 1</text>"), 1);
  EXPECT_EQ(test::count_of(html, "<b>a&lt;b</b>: rank 1 waits least (0% of its time)"), 1) << html;
  EXPECT_EQ(test::count_of(html, "rank 0, forward: 100 ms a step, 50%"), 1) << html;
}

TEST(StepTimesFigure, NamesNoRankIfTheDifferenceIsSmall) {
  const auto figure = [](double waiting) {
    return step_times_figure({RunRecord{
        .name = "run",
        .series = {series("time/rank_0/other", {{10, 100 - waiting}}), series("time/rank_0/waiting", {{10, waiting}}),
                   series("time/rank_1/other", {{10, 80.0}}), series("time/rank_1/waiting", {{10, 20.0}})},
        .session_steps = {0}}});
  };
  EXPECT_EQ(test::count_of(figure(29), "waits least"), 0);
  EXPECT_EQ(test::count_of(figure(31), "waits least"), 1);
  EXPECT_EQ(test::count_of(figure(29), "other (logging, evaluation"), 1);
}

TEST(StepTimesFigure, IsEmptyWithoutTimes) {
  EXPECT_EQ(step_times_figure({RunRecord{.series = {series("loss", {{1, 1}})}}}), "");
}

}  // namespace
}  // namespace tutti::step_times_test
