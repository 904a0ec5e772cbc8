// Ranks: none. What the coordinator pushes is called directly.
#include "comm/rendezvous/job_events.h"

#include <gtest/gtest.h>

#include <thread>

namespace tutti::comm::job_events_test {
namespace {

using coordinator::Cause;

constexpr int owner = 0;

struct Job {
  std::shared_ptr<JobEvents> events = std::make_shared<JobEvents>(owner);
  coordinator::ClientEvents push = events->handlers();
};

TEST(JobEvents, HoldsFailedRanksByCause) {
  Job job;
  job.push.on_failed({.ranks = {5}, .cause = Cause::exited});
  job.push.on_failed({.ranks = {2}, .cause = Cause::exited});
  job.push.on_failed({.ranks = {3}, .cause = Cause::stopped});
  job.push.on_failed({.ranks = {6, 7}, .cause = Cause::unreachable});
  job.push.on_left({1});
  const auto status = job.events->status();
  EXPECT_TRUE(job.events->has_ended(2) && job.events->has_ended(5));
  EXPECT_EQ(status.failed,
            (FailureCauses{{3, Cause::stopped}, {6, Cause::unreachable}, {7, Cause::unreachable}}));  // exits act later
  EXPECT_TRUE(job.events->has_ended(1));
  EXPECT_FALSE(job.events->has_ended(3));
  EXPECT_FALSE(status.is_coordinator_lost);
  EXPECT_TRUE(job.events->has_failed());
}

TEST(JobEvents, AWarningIsNoFailure) {
  Job job;
  int warnings = 0;
  const auto subscription =
      job.events->subscribe({.on_failed = [&](const auto& event) { warnings += event.is_warning; }});
  job.push.on_failed({.ranks = {1}, .cause = Cause::stopped, .is_warning = true});
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(job.events->status().failed, FailureCauses{});
  EXPECT_FALSE(job.events->has_failed());
}

TEST(JobEvents, ALostCoordinatorIsAFailureUnlessItsRankHasLeft) {
  for (const bool has_left : {false, true}) {
    Job job;
    if (has_left) job.push.on_left({owner});
    job.push.on_lost(Cause::unreachable, "no answer");
    EXPECT_EQ(job.events->status().is_coordinator_lost, !has_left);
    EXPECT_EQ(job.events->lost_reason(), "no answer");
  }
}

// The last bytes that the rank has sent may still be read.
TEST(JobEvents, ACoordinatorThatHasExitedIsNoFailureAtOnce) {
  Job job;
  job.push.on_lost(Cause::exited, "it has exited");
  EXPECT_FALSE(job.events->status().is_coordinator_lost);
  EXPECT_TRUE(job.events->has_ended(owner));
}

TEST(JobEvents, KeepsTheReportsOfEachGroup) {
  Job job;
  job.push.on_report("a", 1, "first");
  job.push.on_report("b", 1, "elsewhere");
  job.push.on_report("a", 2, "second");
  EXPECT_EQ(job.events->reports("a"), (std::map<int, std::string>{{1, "first"}, {2, "second"}}));
  EXPECT_TRUE(job.events->reports("c").empty());
}

TEST(JobEvents, AnEventEndsAWait) {
  Job job;
  const auto seen = job.events->version();
  std::thread pushes([&] { job.push.on_report("a", 1, "text"); });
  job.events->wait_for_change(seen, Clock::now() + std::chrono::seconds(60));
  EXPECT_EQ(job.events->reports("a").size(), 1U);
  pushes.join();
  job.events->wait_for_change(seen, Clock::now() + std::chrono::seconds(60));  // returns at once
}

TEST(JobEvents, AReleasedListenerIsNotCalled) {
  Job job;
  int calls = 0;
  auto subscription = job.events->subscribe({.on_failed = [&](const auto&) { ++calls; },
                                             .on_deadlock = [&](const auto&) { ++calls; },
                                             .on_lost = [&] { ++calls; }});
  job.push.on_deadlock({.text = "deadlock", .is_certain = true});
  EXPECT_EQ(calls, 1);
  subscription.reset();
  job.push.on_failed({.ranks = {1}, .cause = Cause::exited});
  job.push.on_lost(Cause::exited, "");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace tutti::comm::job_events_test
