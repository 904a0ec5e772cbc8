// What is due after which step.
#include "local_sgd/timetable.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "local_sgd/check_options.h"

namespace tutti::local_sgd::timetable_test {
namespace {

std::vector<Turn> turns(Timetable& timetable, int steps) {
  std::vector<Turn> result;
  for (int step = 0; step < steps; ++step) {
    result.push_back(timetable.next());
    timetable.advance();
  }
  return result;
}

std::vector<int> steps_where(const std::vector<Turn>& turns, bool (*what)(const Turn&)) {
  std::vector<int> steps;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (what(turns[i])) steps.push_back(static_cast<int>(i) + 1);
  }
  return steps;
}
const auto sends = [](const Turn& turn) { return turn.sends.has_value(); };
const auto applies = [](const Turn& turn) { return turn.applies.has_value(); };

TEST(Timetable, CombinesEveryLocalSteps) {
  Timetable timetable({.local_steps = 3});
  const auto all = turns(timetable, 10);
  EXPECT_EQ(steps_where(all, sends), (std::vector<int>{3, 6, 9}));
  EXPECT_EQ(steps_where(all, applies), (std::vector<int>{3, 6, 9}));
}

TEST(Timetable, CountsRoundsFromTheWarmupsEnd) {
  Timetable timetable({.local_steps = 3, .warmup_steps = 2});
  EXPECT_TRUE(timetable.warming_up());
  const auto all = turns(timetable, 8);
  EXPECT_FALSE(timetable.warming_up());
  EXPECT_EQ(steps_where(all, [](const Turn& turn) { return turn.warms_up; }), (std::vector<int>{1, 2}));
  EXPECT_EQ(steps_where(all, [](const Turn& turn) { return turn.ends_warmup; }), (std::vector<int>{2}));
  EXPECT_EQ(steps_where(all, sends), (std::vector<int>{5, 8}));
}

TEST(Timetable, AveragesInsideNodesBetweenRounds) {
  Timetable timetable({.local_steps = 6, .steps_inside_node = 2});
  const auto all = turns(timetable, 12);
  EXPECT_EQ(steps_where(all, [](const Turn& turn) { return turn.inside_node; }), (std::vector<int>{2, 4, 8, 10}));
  EXPECT_EQ(steps_where(all, sends), (std::vector<int>{6, 12}));
}

TEST(Timetable, GivesEachFragmentAStepOfItsOwnAndAppliesItLater) {
  for (int local_steps = 1; local_steps <= 24; ++local_steps) {
    for (int fragments = 1; fragments <= local_steps; ++fragments) {
      for (int overlap = 0; overlap < local_steps / fragments; ++overlap) {
        const LocalUpdateOptions options{.local_steps = local_steps,
                                         .streaming = {.fragments = fragments, .overlap_steps = overlap}};
        check_options(options);
        Timetable timetable(options);
        std::map<int, std::vector<int>> sent, applied;
        int step = 0;
        for (const Turn& turn : turns(timetable, 3 * local_steps + overlap)) {
          ++step;
          if (turn.sends) sent[*turn.sends].push_back(step);
          if (turn.applies) applied[*turn.applies].push_back(step);
        }
        ASSERT_EQ(sent.size(), static_cast<std::size_t>(fragments));
        for (int fragment = 0; fragment < fragments; ++fragment) {
          const int phase = (fragment + 1) * local_steps / fragments;
          for (int round = 0; round < 3; ++round) {
            ASSERT_EQ(sent[fragment].at(static_cast<std::size_t>(round)), phase + round * local_steps);
            ASSERT_EQ(applied[fragment].at(static_cast<std::size_t>(round)), phase + round * local_steps + overlap);
          }
        }
      }
    }
  }
}

TEST(Timetable, BeginsARoundAfterFinishWithoutAppliesFromBefore) {
  Timetable timetable({.local_steps = 4, .streaming = {.overlap_steps = 2}});
  turns(timetable, 5);
  timetable.restart();
  const auto all = turns(timetable, 6);
  EXPECT_EQ(steps_where(all, sends), (std::vector<int>{4}));
  EXPECT_EQ(steps_where(all, applies), (std::vector<int>{6}));
}

TEST(Timetable, GoesOnWhereAnotherStood) {
  const LocalUpdateOptions options{.local_steps = 5, .warmup_steps = 3};
  Timetable first(options);
  for (int step = 0; step < 12; ++step) {
    Timetable second(options);
    ASSERT_TRUE(second.move_to(first.warmed(), first.position()));
    EXPECT_EQ(second.next(), first.next());
    first.advance();
  }
  EXPECT_FALSE(first.move_to(4, 0));
  EXPECT_FALSE(first.move_to(2, 1));
  EXPECT_FALSE(first.move_to(3, -1));
}

}  // namespace
}  // namespace tutti::local_sgd::timetable_test
