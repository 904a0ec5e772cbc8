// The actions that are due after each step.
#include "local_sgd/schedule.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <vector>

#include "local_sgd/check_options.h"

namespace tutti::local_sgd::schedule_test {
namespace {

std::vector<DueActions> turns(Schedule& schedule, int steps) {
  std::vector<DueActions> result;
  for (int step = 0; step < steps; ++step) {
    result.push_back(schedule.next());
    schedule.advance();
  }
  return result;
}

std::vector<int> steps_where(const std::vector<DueActions>& turns, bool (*what)(const DueActions&)) {
  std::vector<int> steps;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (what(turns[i])) steps.push_back(static_cast<int>(i) + 1);
  }
  return steps;
}
const auto sends = [](const DueActions& turn) { return turn.sends.has_value(); };
const auto applies = [](const DueActions& turn) { return turn.applies.has_value(); };

TEST(Schedule, AveragesEveryLocalSteps) {
  Schedule schedule({.local_steps = 3});
  const auto all = turns(schedule, 10);
  EXPECT_EQ(steps_where(all, sends), (std::vector<int>{3, 6, 9}));
  EXPECT_EQ(steps_where(all, applies), (std::vector<int>{3, 6, 9}));
}

TEST(Schedule, CountsRoundsFromTheWarmupsEnd) {
  Schedule schedule({.local_steps = 3, .warmup_steps = 2});
  EXPECT_TRUE(schedule.warming_up());
  const auto all = turns(schedule, 8);
  EXPECT_FALSE(schedule.warming_up());
  EXPECT_EQ(steps_where(all, [](const DueActions& turn) { return turn.warms_up; }), (std::vector<int>{1, 2}));
  EXPECT_EQ(steps_where(all, [](const DueActions& turn) { return turn.ends_warmup; }), (std::vector<int>{2}));
  EXPECT_EQ(steps_where(all, sends), (std::vector<int>{5, 8}));
}

TEST(Schedule, AveragesInsideNodesBetweenRounds) {
  Schedule schedule({.local_steps = 6, .node_sync_steps = 2});
  const auto all = turns(schedule, 12);
  EXPECT_EQ(steps_where(all, [](const DueActions& turn) { return turn.inside_node; }), (std::vector<int>{2, 4, 8, 10}));
  EXPECT_EQ(steps_where(all, sends), (std::vector<int>{6, 12}));
}

TEST(Schedule, SendsEachFragmentAfterADifferentStepAndAppliesItLater) {
  for (int local_steps = 1; local_steps <= 24; ++local_steps) {
    for (int fragments = 1; fragments <= local_steps; ++fragments) {
      for (int overlap = 0; overlap < local_steps / fragments; ++overlap) {
        const LocalSgdAlgorithmOptions options{.local_steps = local_steps,
                                               .streaming = {.fragments = fragments, .overlap_steps = overlap}};
        check_options(options);
        Schedule schedule(options);
        std::map<int, std::vector<int>> sent, applied;
        int step = 0;
        for (const DueActions& turn : turns(schedule, 3 * local_steps + overlap)) {
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

TEST(Schedule, BeginsARoundAfterFinishWithoutAppliesFromBefore) {
  Schedule schedule({.local_steps = 4, .streaming = {.overlap_steps = 2}});
  turns(schedule, 5);
  schedule.restart();
  const auto all = turns(schedule, 6);
  EXPECT_EQ(steps_where(all, sends), (std::vector<int>{4}));
  EXPECT_EQ(steps_where(all, applies), (std::vector<int>{6}));
}

// "Never before finish()". A sum that overflows is found by the sanitizer of undefined behaviour.
TEST(Schedule, TheLargestNumberOfStepsIsNeverReached) {
  Schedule schedule({.local_steps = std::numeric_limits<std::int64_t>::max()});
  EXPECT_TRUE(steps_where(turns(schedule, 3), sends).empty());
}

TEST(Schedule, ContinuesFromASavedPosition) {
  const LocalSgdAlgorithmOptions options{.local_steps = 5, .warmup_steps = 3};
  Schedule first(options);
  for (int step = 0; step < 12; ++step) {
    Schedule second(options);
    ASSERT_TRUE(second.move_to(first.warmed(), first.position()));
    EXPECT_EQ(second.next(), first.next());
    first.advance();
  }
  EXPECT_FALSE(first.move_to(4, 0));
  EXPECT_FALSE(first.move_to(2, 1));
  EXPECT_FALSE(first.move_to(3, -1));
}

}  // namespace
}  // namespace tutti::local_sgd::schedule_test
