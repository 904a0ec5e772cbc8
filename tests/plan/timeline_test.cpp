#include "plan/timeline.h"

#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti::plan::timeline_test {
namespace {

constexpr double plenty = 3;  // a core for each thread

TEST(Timeline, ComputingAloneTakesTheTimeOfItsCores) {
  const Script script{.computing = {{.cpu_ms = 4}, {.cpu_ms = 6}}};
  EXPECT_DOUBLE_EQ(play(script, plenty), 10);
  EXPECT_DOUBLE_EQ(play(script, 1), 10);
  EXPECT_DOUBLE_EQ(play(script, 0.5), 20);
}

TEST(Timeline, IsEmptyForAnEmptyScript) {
  EXPECT_EQ(play({}, 1), 0);
}

TEST(Timeline, AddingOverlapsComputing) {
  const Script script{.computing = {{.cpu_ms = 4, .completes = 0}, {.cpu_ms = 6}},
                      .adding = {{.bucket = 0, .cpu_ms = 5}}};
  EXPECT_DOUBLE_EQ(play(script, plenty), 10);
  // On one core, both are slower while both need the core.
  EXPECT_DOUBLE_EQ(play(script, 1), 15);
}

TEST(Timeline, PausesTakeNoCore) {
  const Script script{.computing = {{.cpu_ms = 4, .completes = 0}, {.cpu_ms = 6}},
                      .adding = {{.bucket = 0, .pause_ms = 3, .cpu_ms = 2}}};
  EXPECT_DOUBLE_EQ(play(script, 1), 12);
}

TEST(Timeline, MessagesLeaveOneAfterTheOther) {
  const Script script{.computing = {{.cpu_ms = 1, .sends = {0, 1}}},
                      .adding = {{.message = 1}},
                      .messages = {{.link_ms = 5}, {.link_ms = 7, .latency_ms = 2}}};
  EXPECT_DOUBLE_EQ(play(script, plenty), 1 + 5 + 7 + 2);
}

TEST(Timeline, AFastLinkWaitsForItsCore) {
  const Script script{.computing = {{.cpu_ms = 1, .sends = {0}}},
                      .adding = {{.message = 0}},
                      .messages = {{.link_ms = 1, .cpu_ms = 4}}};
  EXPECT_DOUBLE_EQ(play(script, plenty), 1 + 4);
  EXPECT_DOUBLE_EQ(play(script, 0.5), 2 + 8);
}

TEST(Timeline, ASlowLinkTakesLittleOfACore) {
  // The message needs a quarter of a core for its duration; computing has the rest.
  const Script script{.computing = {{.sends = {0}}, {.cpu_ms = 3}},
                      .adding = {{.message = 0}},
                      .messages = {{.link_ms = 8, .cpu_ms = 2}}};
  EXPECT_DOUBLE_EQ(play(script, 1), 8);
}

TEST(Timeline, SumsAreSentAfterAdding) {
  const Script script{.computing = {{.cpu_ms = 2, .completes = 0}},
                      .adding = {{.bucket = 0, .cpu_ms = 1, .sends = 0}, {.message = 0}},
                      .messages = {{.link_ms = 4}}};
  EXPECT_DOUBLE_EQ(play(script, plenty), 7);
}

TEST(Timeline, RefusesAWaitThatNeverEnds) {
  EXPECT_THROW(play({.adding = {{.bucket = 0}}}, 1), Error);
  EXPECT_THROW(play({.adding = {{.message = 0}}, .messages = {{}}}, 1), Error);
}

}  // namespace
}  // namespace tutti::plan::timeline_test
