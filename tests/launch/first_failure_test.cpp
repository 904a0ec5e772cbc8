// Which process failed first. The messages are those that the ranks of a job print.
#include "launch/first_failure.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "flight/wait_graph.h"

namespace tutti::first_failure_test {
namespace {

using flight::FailureReport;
using State = ProcessEnd::State;
using Processes = std::vector<std::size_t>;
using Ranks = std::vector<int>;

/// The error of rank 0 of three, which waited for `absent` in a barrier.
std::string error_of_rank_0(FailureReport::Reason reason, Ranks absent) {
  flight::FailureReports reports(3);
  reports[0] = FailureReport{.reason = reason,
                             .operation = 3,
                             .timeout = std::chrono::seconds(2),
                             .waiting_for = std::move(absent),
                             .description = "barrier (operation 3)"};
  return flight::find_root_cause(reports, 0).message;
}

TEST(FindNamedFailure, ReadsTheRanksThatErrorsOfCallsName) {
  using enum FailureReport::Reason;
  for (const auto reason : {connection_closed, process_exited}) {
    const auto named = named_failure_in(error_of_rank_0(reason, {2}));
    EXPECT_EQ(named.ranks, Ranks{2}) << error_of_rank_0(reason, {2});
    EXPECT_FALSE(named.timed_out);
  }
  for (const auto reason : {timeout, process_stopped, heartbeat_lost}) {
    const auto named = named_failure_in("[rank 0] " + error_of_rank_0(reason, {1, 2}));
    EXPECT_EQ(named.ranks, (Ranks{1, 2})) << error_of_rank_0(reason, {1, 2});
    EXPECT_TRUE(named.timed_out);
  }
}

TEST(FindNamedFailure, ReadsOtherErrorsThatNameRanks) {
  for (const auto* line :
       {"barrier (operation 3): no answer from rank 2 (timed out)",
        "all_reduce: rank 2, which runs the coordinator, exited",
        "rank 2: cannot write model.safetensors: No space left on device",
        "recv from rank 0: rank 2 exited or disconnected", "rank 2 did not join within 5 min",
        "barrier: the other ranks timed out waiting for this rank (2) after 2 s",
        // As the launcher of a host prints them.
        "[rank 1] rank 2: cannot write model.safetensors", "    rank 2: cannot write model.safetensors",
        "    [ranks 0, 1] rank 2: cannot write model.safetensors"}) {
    EXPECT_EQ(named_failure_in(line).ranks, Ranks{2}) << line;
  }
}

TEST(FindNamedFailure, OtherLinesNameNoRank) {
  for (const auto* line : {"", "rank", "ranks 0, 1", "[rank 1] cannot read part_7.bin", "rank 0 has float [2, 3]",
                           "called on some ranks only: rank 0 waits in barrier, which rank 1 has not called",
                           "tutti: rank 1 failed first: exit code 3", "frank 3 exited", "[info] rank 1: epoch 3",
                           "ranks 2147483640 to 2147483647 exited", "ranks 5 to -2147483648 exited"}) {
    EXPECT_EQ(named_failure_in(line).ranks, Ranks{}) << line;
  }
}

TEST(FindFirstFailure, IsTheFirstExitIfNoRankNamesAnother) {
  EXPECT_EQ(
      find_first_failure({{.process = 2, .state = State::failed}, {.process = 0, .state = State::failed}}).process, 2U);
}

TEST(FindFirstFailure, FollowsTheErrorsToARankThatExitsLater) {
  const std::vector<ProcessEnd> ends{{.process = 1, .state = State::failed, .failed_peers = {2}},
                                     {.process = 2, .state = State::failed, .failed_peers = {0}},
                                     {.process = 0, .state = State::failed}};
  EXPECT_EQ(find_first_failure(ends).process, 0U);
}

TEST(FindNamedFailure, PrefersTheReasonToTheRankThatPrintsIt) {
  const auto named =
      named_failure_in("rank 0: gradient exchange (operation 17): rank 1 disconnected (connection closed)");
  EXPECT_EQ(named.ranks, Ranks{1});
}

// Its destructors run for longer than the launcher waits, or it has called exec.
TEST(FindFirstFailure, NamesARankThatHadLeftAndThatTheLauncherEnded) {
  std::vector<ProcessEnd> ends{{.process = 0, .state = State::failed, .failed_peers = {2}},
                               {.process = 2, .state = State::ended_by_launcher}};
  EXPECT_EQ(find_first_failure(ends).process, 2U);
  // Rank 1 lost rank 2 when the launcher ended it.
  ends = {{.process = 0, .state = State::failed, .failed_peers = {1}},
          {.process = 2, .state = State::ended_by_launcher},
          {.process = 1, .state = State::failed, .failed_peers = {2}}};
  EXPECT_EQ(find_first_failure(ends).process, 1U);
}

TEST(FindFirstFailure, DoesNotNameARankThatTheLauncherEnded) {
  // Rank 0 computes for too long. Its peer's timeout is the failure.
  const std::vector<ProcessEnd> ends{
      {.process = 1, .state = State::failed, .failed_peers = {0}, .peers_were_late = true},
      {.process = 0, .state = State::ended_by_launcher}};
  EXPECT_EQ(find_first_failure(ends).process, 1U);
}

TEST(FindFirstFailure, NamesAStoppedRank) {
  for (const auto state : {State::failed, State::ended_by_launcher}) {
    const std::vector<ProcessEnd> ends{
        {.process = 1, .state = State::failed, .failed_peers = {0}, .peers_were_late = true},
        {.process = 0, .state = state, .was_stopped = true, .failed_peers = {1}}};
    EXPECT_EQ(find_first_failure(ends).process, 0U);
  }
}

TEST(FindFirstFailure, ALateRankThatFindsItsPeersGoneIsTheFirst) {
  const std::vector<ProcessEnd> late{
      {.process = 1, .state = State::failed, .failed_peers = {0}, .peers_were_late = true},
      {.process = 0, .state = State::failed, .failed_peers = {1}}};
  EXPECT_EQ(find_first_failure(late).process, 0U);
  // If neither was late, their errors do not tell: the order of exits does.
  const std::vector<ProcessEnd> both{{.process = 1, .state = State::failed, .failed_peers = {0}},
                                     {.process = 0, .state = State::failed, .failed_peers = {1}}};
  EXPECT_EQ(find_first_failure(both).process, 1U);
}

TEST(FindFirstFailure, AFlightRecordShowsWhoFailedOutsideACall) {
  const std::vector<ProcessEnd> ends{{.process = 1, .state = State::failed, .has_failed_call = true},
                                     {.process = 2, .state = State::failed, .has_failed_call = true},
                                     {.process = 0, .state = State::failed}};
  EXPECT_EQ(find_first_failure(ends).process, 0U);
  const std::vector<ProcessEnd> all_in_a_call{{.process = 1, .state = State::failed, .has_failed_call = true},
                                              {.process = 0, .state = State::failed, .has_failed_call = true}};
  EXPECT_EQ(find_first_failure(all_in_a_call).process, 1U);
}

TEST(FindFirstFailure, TellsWhichRanksCompletedBefore) {
  const std::vector<ProcessEnd> ends{
      {.process = 3}, {.process = 1, .state = State::failed, .failed_peers = {0}}, {.process = 2}, {.process = 0}};
  const auto failure = find_first_failure(ends);
  EXPECT_EQ(failure.process, 1U);
  EXPECT_EQ(failure.completed_before, (Processes{3, 0}));  // rank 1 names rank 0, which thus left before it
}

}  // namespace
}  // namespace tutti::first_failure_test
