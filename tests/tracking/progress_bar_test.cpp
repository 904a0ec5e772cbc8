#include "tutti/tracking/progress_bar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "launch/tutti_process.h"
#include "tracking/progress_line.h"

namespace tutti::progress_bar_test {
namespace {

using namespace std::chrono_literals;
using test::contains;
using test::lines_with;

ProgressState half_done() {
  return {.description = "training",
          .unit = "step",
          .postfix = "loss 1.234",
          .done = 50,
          .total = 100,
          .elapsed = 65s,
          .rate = 12.5};
}

TEST(ProgressLine, ShowsTheProgressOfARun) {
  EXPECT_EQ(progress_line(half_done(), 90),
            "training  50% [==========>           ]  50/100 steps  1:05 < 0:04  12.5 step/s  loss 1.234");
}

TEST(ProgressLine, IsNeverWiderThanTheTerminal) {
  for (std::size_t width = 0; width < 120; ++width) {
    EXPECT_LE(columns(progress_line(half_done(), width)), width) << width;
  }
  EXPECT_EQ(progress_line(half_done(), 12), "training  50");
  EXPECT_FALSE(contains(progress_line(half_done(), 70), "["));  // the bar is the first to go
  EXPECT_TRUE(contains(progress_line(half_done(), 70), "loss 1.2"));
}

TEST(ProgressLine, CountsCharactersAndNotBytes) {
  auto state = half_done();
  state.description = "\u00FCb\u00FCng";
  EXPECT_EQ(progress_line(state, 3), "\u00FCb\u00FC");
  EXPECT_EQ(columns(state.description), 5U);
}

TEST(ProgressLine, StaysOnOneLine) {
  auto state = half_done();
  state.postfix = "a\nb\x1B[2J\rc";
  EXPECT_TRUE(contains(progress_line(state, 200), "a b [2J c"));
}

TEST(ProgressLine, FillsTheBarAtTheEnd) {
  auto state = half_done();
  state.done = state.total;
  EXPECT_TRUE(contains(progress_line(state, 90), "100% [==========="));
  EXPECT_FALSE(contains(progress_line(state, 90), ">"));
  state.done = 2 * state.total;
  EXPECT_TRUE(contains(progress_line(state, 90), "100% ["));
}

TEST(ProgressLine, OmitsTheShareOfAnUnknownTotal) {
  auto state = half_done();
  state.total = 0;
  EXPECT_EQ(progress_line(state, 90), "training  50 steps  1:05  12.5 step/s  loss 1.234");
}

TEST(FormatDuration, GrowsWithTheTime) {
  EXPECT_EQ(format_duration(5s), "0:05");
  EXPECT_EQ(format_duration(3600s + 62s), "1:01:02");
  EXPECT_EQ(format_duration(50h), "2d 02:00:00");
}

TEST(FormatRate, ShowsSecondsPerStepForSlowSteps) {
  EXPECT_EQ(format_rate(1234.4, "step"), "1234 step/s");
  EXPECT_EQ(format_rate(1.239, "step"), "1.24 step/s");
  EXPECT_EQ(format_rate(0.25, "step"), "4.00 s/step");
  EXPECT_EQ(format_rate(0, "step"), "0 step/s");
}

TEST(SmoothedRate, IsRightFromTheFirstStepOn) {
  SmoothedRate rate;
  EXPECT_EQ(rate.per_second(), std::nullopt);
  rate.add(10, 2);
  EXPECT_DOUBLE_EQ(*rate.per_second(), 5);
}

TEST(SmoothedRate, FollowsAChangeWithinItsMemory) {
  SmoothedRate rate;
  for (int i = 0; i < 100; ++i) rate.add(10, 1);
  EXPECT_NEAR(*rate.per_second(), 10, 1e-9);
  for (int i = 0; i < 30; ++i) rate.add(20, 1);
  EXPECT_NEAR(*rate.per_second(), 20 - 10 * std::exp(-1.0), 0.1);
}

struct FakeTime {
  std::chrono::steady_clock::time_point now{};
  std::function<std::chrono::steady_clock::time_point()> clock() {
    return [this] { return now; };
  }
};

TEST(ProgressBar, WritesPlainLinesAtIntervalsWithoutATerminal) {
  FakeTime time;
  std::ostringstream out;
  {
    ProgressBar bar({.total = 100, .now = time.clock()}, out);
    for (int step = 1; step <= 50; ++step) {
      time.now += 1s;
      bar.update(step);
    }
  }
  EXPECT_EQ(out.str().find('\r'), std::string::npos);
  // At steps 1, 11, 21, 31 and 41, and at the end.
  EXPECT_EQ(lines_with(out.str(), "/100 step"), 6) << out.str();
  EXPECT_TRUE(contains(out.str(), " 11/100 steps  0:11 < 1:29  1.00 step/s")) << out.str();
  EXPECT_TRUE(contains(out.str(), " 50/100 steps")) << out.str();
}

TEST(ProgressBar, RedrawsInPlaceAndEndsTheLine) {
  FakeTime time;
  std::ostringstream out;
  {
    ProgressBar bar({.total = 10, .in_place = true, .now = time.clock()}, out);
    time.now += 1s;
    bar.update(1, "a long postfix");
    time.now += 50ms;
    bar.update(2);  // too soon to be drawn
    time.now += 50ms;
    bar.update(3);
    EXPECT_EQ(out.str().find('\n'), std::string::npos);
  }
  const auto text = out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 2) << text;
  EXPECT_FALSE(contains(text, " 2/10")) << text;
  EXPECT_TRUE(text.ends_with("\n")) << text;
}

TEST(ProgressBar, OverwritesTheRestOfALongerLine) {
  FakeTime time;
  std::ostringstream out;
  ProgressBar bar({.in_place = true, .now = time.clock()}, out);
  bar.update(1, "a long postfix");
  time.now += 1s;
  bar.update(2);
  const auto text = out.str();
  const auto second = text.rfind('\r');
  EXPECT_EQ(text.size() - second, second) << text;
}

TEST(ProgressBar, DrawsTheLastStepAtOnce) {
  FakeTime time;
  std::ostringstream out;
  ProgressBar bar({.total = 10, .now = time.clock()}, out);
  bar.update(9);
  bar.update(10, "done");
  EXPECT_TRUE(contains(out.str(), "100%")) << out.str();
}

TEST(ProgressBar, CountsOnlyItsOwnStepsForTheRate) {
  FakeTime time;
  std::ostringstream out;
  ProgressBar bar({.total = 1000, .start = 900, .now = time.clock()}, out);
  time.now += 10s;
  bar.update(920);
  EXPECT_TRUE(contains(out.str(), "920/1000 steps  0:10 < 0:40  2.00 step/s")) << out.str();
}

TEST(ProgressBar, WritesNothingWithoutAnUpdate) {
  std::ostringstream out;
  { const ProgressBar bar({.total = 10, .in_place = true}, out); }
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace tutti::progress_bar_test
