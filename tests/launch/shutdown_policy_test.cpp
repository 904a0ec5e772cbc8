#include "launch/shutdown_policy.h"

#include <gtest/gtest.h>

#include <csignal>

namespace tutti::shutdown_policy_test {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds grace{100};
constexpr ShutdownPolicy::Clock::time_point start{};

TEST(ShutdownPolicy, SendsNothingWhileAllRanksRun) {
  ShutdownPolicy policy(grace);
  EXPECT_EQ(policy.deadline(), std::nullopt);
  EXPECT_EQ(policy.on_time(start + milliseconds(1'000'000)), std::nullopt);
}

TEST(ShutdownPolicy, AfterAFailureWaitsThenTerminatesThenKills) {
  ShutdownPolicy policy(grace);
  policy.on_rank_failed(start);
  EXPECT_EQ(policy.deadline(), start + grace);
  EXPECT_EQ(policy.on_time(start + milliseconds(99)), std::nullopt);
  EXPECT_EQ(policy.on_time(start + milliseconds(110)), SIGTERM);
  EXPECT_EQ(policy.deadline(), start + milliseconds(210));
  EXPECT_EQ(policy.on_time(start + milliseconds(209)), std::nullopt);
  EXPECT_EQ(policy.on_time(start + milliseconds(210)), SIGKILL);
  EXPECT_EQ(policy.deadline(), std::nullopt);
  EXPECT_EQ(policy.on_time(start + milliseconds(1000)), std::nullopt);
}

TEST(ShutdownPolicy, FurtherFailuresDoNotExtendTheGraceTime) {
  ShutdownPolicy policy(grace);
  policy.on_rank_failed(start);
  policy.on_rank_failed(start + milliseconds(90));
  EXPECT_EQ(policy.deadline(), start + grace);
}

TEST(ShutdownPolicy, ForwardsAnInterruptionAtOnceThenKills) {
  for (const int signal : {SIGINT, SIGTERM}) {
    ShutdownPolicy policy(grace);
    EXPECT_EQ(policy.on_interrupt(signal, start), signal);
    EXPECT_EQ(policy.on_time(start + milliseconds(99)), std::nullopt);
    EXPECT_EQ(policy.on_time(start + grace), SIGKILL);
  }
}

TEST(ShutdownPolicy, GivesLaunchersOnOtherHostsTimeToEndTheirRanks) {
  constexpr auto ranks_are_killed_after = std::chrono::seconds(30);
  ShutdownPolicy failed(std::nullopt, ShutdownPolicy::Ends::launchers);
  failed.on_rank_failed(start);
  const auto ending = start + ShutdownPolicy::grace_after_failure;
  EXPECT_EQ(failed.on_time(ending), SIGTERM);
  EXPECT_GT(failed.deadline(), ending + ranks_are_killed_after);
  ShutdownPolicy interrupted(std::nullopt, ShutdownPolicy::Ends::launchers);
  interrupted.on_interrupt(SIGTERM, start);
  EXPECT_GT(interrupted.deadline(), start + ranks_are_killed_after);
  interrupted.on_interrupt(SIGINT, start);
  EXPECT_EQ(interrupted.deadline(), std::nullopt);
}

TEST(ShutdownPolicy, AnInterruptionLeavesTimeForACheckpoint) {
  ShutdownPolicy policy(std::nullopt);
  policy.on_rank_failed(start);
  EXPECT_EQ(policy.deadline(), start + std::chrono::seconds(5));
  policy.on_interrupt(SIGTERM, start);
  EXPECT_EQ(policy.deadline(), start + std::chrono::seconds(30));
}

TEST(ShutdownPolicy, ForwardsAHangupAndAQuitAsSigterm) {
  for (const int signal : {SIGHUP, SIGQUIT}) {
    ShutdownPolicy policy(grace);
    EXPECT_EQ(policy.on_interrupt(signal, start), SIGTERM);
    EXPECT_EQ(policy.on_interrupt(signal, start), std::nullopt);
    EXPECT_EQ(policy.on_time(start + grace), SIGKILL);
  }
}

TEST(ShutdownPolicy, KillsAtOnceOnTheSecondCtrlC) {
  for (const int first : {SIGINT, SIGTERM}) {
    ShutdownPolicy policy(grace);
    policy.on_interrupt(first, start);
    EXPECT_EQ(policy.on_interrupt(SIGINT, start + milliseconds(1)), SIGKILL);
    EXPECT_EQ(policy.on_interrupt(SIGINT, start + milliseconds(2)), std::nullopt);
  }
}

TEST(ShutdownPolicy, IgnoresARepeatedSigterm) {
  ShutdownPolicy policy(grace);
  policy.on_interrupt(SIGTERM, start);
  EXPECT_EQ(policy.on_interrupt(SIGTERM, start + milliseconds(50)), std::nullopt);
  EXPECT_EQ(policy.deadline(), start + grace);
}

TEST(ShutdownPolicy, RanksThatFailOnAnInterruptionChangeNothing) {
  ShutdownPolicy policy(grace);
  policy.on_interrupt(SIGINT, start);
  policy.on_rank_failed(start + milliseconds(50));
  EXPECT_EQ(policy.on_time(start + grace), SIGKILL);
}

TEST(ShutdownPolicy, AnInterruptionEndsTheWaitAfterAFailure) {
  ShutdownPolicy policy(grace);
  policy.on_rank_failed(start);
  EXPECT_EQ(policy.on_interrupt(SIGINT, start + milliseconds(50)), SIGINT);
  EXPECT_EQ(policy.on_time(start + milliseconds(150)), SIGKILL);
}

TEST(ShutdownPolicy, AnInterruptionAfterSigtermDoesNotExtendTheGraceTime) {
  ShutdownPolicy policy(grace);
  policy.on_rank_failed(start);
  policy.on_time(start + grace);
  EXPECT_EQ(policy.on_interrupt(SIGINT, start + milliseconds(150)), SIGINT);
  EXPECT_EQ(policy.deadline(), start + milliseconds(200));
}

}  // namespace
}  // namespace tutti::shutdown_policy_test
