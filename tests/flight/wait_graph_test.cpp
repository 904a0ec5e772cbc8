// Ranks: none. The root cause from the failure reports of the ranks, and whether blocked ranks can continue.
#include "flight/wait_graph.h"

#include <gtest/gtest.h>

namespace tutti::flight::wait_graph_test {
namespace {

using Reason = FailureReport::Reason;

FailureReport make_report(Reason reason, std::vector<int> waiting_for, std::uint64_t operation = 17) {
  return {.reason = reason,
          .operation = operation,
          .timeout = std::chrono::seconds(30),
          .waiting_for = std::move(waiting_for),
          .description = "all_reduce 'loss' (operation " + std::to_string(operation) + ")"};
}

TEST(RootCause, AReportSurvivesEncoding) {
  const auto report = make_report(Reason::connection_closed, {3, 1});
  const auto read = FailureReport::from_text(report.to_text());
  EXPECT_EQ(read.reason, report.reason);
  EXPECT_EQ(read.operation, report.operation);
  EXPECT_EQ(read.timeout, report.timeout);
  EXPECT_EQ(read.waiting_for, report.waiting_for);
  EXPECT_EQ(read.description, report.description);
}

TEST(RootCause, AnUnknownReasonIsAClosedConnection) {
  for (const char* reason : {"99", "-1"}) {
    const auto read = FailureReport::from_text(std::string(reason) + " 17 30000 1 2 all_reduce");
    EXPECT_EQ(read.reason, Reason::connection_closed) << reason;
  }
}

TEST(RootCause, ARankWithoutAReportIsTheRootCause) {
  const FailureReports reports = {make_report(Reason::timeout, {2}), make_report(Reason::timeout, {2}), std::nullopt};
  const auto root_cause = find_root_cause(reports, 0);
  EXPECT_EQ(root_cause.failed_ranks, std::vector<int>{2});
  EXPECT_TRUE(root_cause.timed_out);
  EXPECT_EQ(root_cause.message,
            "all_reduce 'loss' (operation 17): rank 2 did not enter the call within 30 s; ranks 0, 1 were waiting");
}

TEST(RootCause, IsToldByTheNumbersOfTheJob) {
  const FailureReports reports = {make_report(Reason::timeout, {2}), make_report(Reason::timeout, {2}), std::nullopt};
  const JobRanks job_ranks({5, 3, 4});
  const auto root_cause = find_root_cause(reports, 0, job_ranks);
  EXPECT_EQ(root_cause.failed_ranks, std::vector<int>{2});
  EXPECT_EQ(
      root_cause.message,
      "all_reduce 'loss' (operation 17) of the group of ranks 3, 4, 5: rank 4 did not enter the call within 30 s; "
      "ranks 3, 5 were waiting");
  const auto late =
      find_root_cause({reports[0], reports[1], make_report(Reason::connection_closed, {0})}, 2, job_ranks);
  EXPECT_NE(late.message.find("timed out waiting for this rank (4) after 30 s"), std::string::npos) << late.message;
}

TEST(RootCause, AStoppedRankIsReportedAsStopped) {
  auto stopped = make_report(Reason::process_stopped, {2});
  stopped.timeout = std::chrono::milliseconds(1500);
  const FailureReports reports = {stopped, make_report(Reason::connection_closed, {0}),
                                  make_report(Reason::connection_closed, {0})};
  for (const int rank : {0, 1}) {
    const auto root_cause = find_root_cause({reports[0], reports[1], std::nullopt}, rank);
    EXPECT_EQ(root_cause.failed_ranks, std::vector<int>{2});
    EXPECT_TRUE(root_cause.timed_out);
    EXPECT_NE(root_cause.message.find("rank 2 has been stopped for 1500 ms (SIGSTOP or Ctrl+Z)"), std::string::npos)
        << root_cause.message;
  }
  const auto awake = find_root_cause(reports, 2);
  EXPECT_NE(awake.message.find("timed out waiting for this rank (2) after 1500 ms"), std::string::npos)
      << awake.message;
}

TEST(RootCause, ARankWhoseOwnDeviceIsLateWaitsForItself) {
  const FailureReports reports = {make_report(Reason::device_timeout, {1, 2}), make_report(Reason::device_timeout, {1}),
                                  make_report(Reason::device_timeout, {0, 1})};
  for (const int rank : {0, 1, 2}) {
    const auto root_cause = find_root_cause(reports, rank);
    EXPECT_EQ(root_cause.failed_ranks, std::vector<int>{1});
    EXPECT_TRUE(root_cause.timed_out);
  }
  EXPECT_EQ(
      find_root_cause(reports, 0).message,
      "all_reduce 'loss' (operation 17): rank 1 did not take part in a collective on the device within 30 s; ranks "
      "0, 2 were waiting");
  EXPECT_NE(find_root_cause(reports, 1).message.find("the device of this rank (1) did not reach a collective"),
            std::string::npos);
}

TEST(RootCause, ARankWhoseDeviceIsLateMayHaveNoReport) {
  const FailureReports reports = {make_report(Reason::device_timeout, {1, 2}), std::nullopt,
                                  make_report(Reason::device_timeout, {0, 1})};
  EXPECT_EQ(find_root_cause(reports, 0).failed_ranks, std::vector<int>{1});
  EXPECT_FALSE(is_complete(reports, 0)) << "rank 1 can publish one";
}

TEST(RootCause, FollowsTheChainToTheExitedRank) {
  const FailureReports reports = {make_report(Reason::connection_closed, {1}),
                                  make_report(Reason::connection_closed, {2}), std::nullopt};
  const auto root_cause = find_root_cause(reports, 0);
  EXPECT_EQ(root_cause.failed_ranks, std::vector<int>{2});
  EXPECT_FALSE(root_cause.timed_out);
  EXPECT_EQ(root_cause.message,
            "all_reduce 'loss' (operation 17): rank 2 disconnected (connection closed); ranks 0, 1 were waiting");
}

TEST(RootCause, AClosedConnectionBehindATimeoutIsATimeout) {
  const FailureReports reports = {make_report(Reason::connection_closed, {1}), make_report(Reason::timeout, {2}),
                                  std::nullopt};
  EXPECT_TRUE(find_root_cause(reports, 0).timed_out);
}

TEST(RootCause, TheNetworkBetweenTwoRanksIsNamed) {
  const FailureReports reports = {make_report(Reason::network_lost, {1}), make_report(Reason::network_lost, {0})};
  const auto root_cause = find_root_cause(reports, 0);
  EXPECT_EQ(root_cause.failed_ranks, std::vector<int>{1});
  EXPECT_NE(root_cause.message.find("rank 1 disconnected (its machine acknowledges nothing"), std::string::npos)
      << root_cause.message;
  EXPECT_EQ(FailureReport::from_text(reports[0]->to_text()).reason, Reason::network_lost);
}

TEST(RootCause, ALateRankIsReportedAsLate) {
  // The ranks that timed out may have closed the communicator or exited by then.
  for (const auto reason : {Reason::connection_closed, Reason::process_exited}) {
    const FailureReports reports = {make_report(Reason::timeout, {2}), make_report(Reason::timeout, {2}),
                                    make_report(reason, {0})};
    EXPECT_EQ(find_root_cause(reports, 0).failed_ranks, std::vector<int>{2});
    const auto root_cause = find_root_cause(reports, 2);
    EXPECT_EQ(root_cause.failed_ranks, std::vector<int>{2});
    EXPECT_NE(root_cause.message.find("timed out waiting for this rank (2) after 30 s"), std::string::npos)
        << root_cause.message;
  }
}

TEST(RootCause, NamesTheRankThatAbortedAnOperation) {
  const FailureReports reports = {make_report(Reason::connection_closed, {1}), make_report(Reason::aborted, {}, 16)};
  const auto root_cause = find_root_cause(reports, 0);
  EXPECT_EQ(root_cause.failed_ranks, std::vector<int>{1});
  EXPECT_NE(root_cause.message.find("rank 1 aborted all_reduce 'loss' (operation 16)"), std::string::npos);
}

TEST(RootCause, NoReportIsExpectedFromAnExitedProcess) {
  const FailureReports reports = {make_report(Reason::process_exited, {2}), make_report(Reason::connection_closed, {0}),
                                  std::nullopt};
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(is_complete(reports, rank));
    const auto root_cause = find_root_cause(reports, rank);
    EXPECT_EQ(root_cause.failed_ranks, std::vector<int>{2});
    EXPECT_FALSE(root_cause.timed_out);
    EXPECT_NE(root_cause.message.find("rank 2 exited"), std::string::npos) << root_cause.message;
  }
  // The report of an exited process counts: rank 1 exited because of rank 2.
  const FailureReports told = {make_report(Reason::process_exited, {1}), make_report(Reason::connection_closed, {2}),
                               std::nullopt};
  EXPECT_FALSE(is_complete(told, 0));
  EXPECT_EQ(find_root_cause(told, 0).failed_ranks, std::vector<int>{2});
  EXPECT_TRUE(is_complete({make_report(Reason::process_stopped, {1}), std::nullopt}, 0));
  const auto left = find_root_cause({make_report(Reason::connection_closed, {1}), std::nullopt}, 0);
  EXPECT_NE(left.message.find("rank 1 disconnected (connection closed)"), std::string::npos) << left.message;
}

TEST(RootCause, NoReportIsExpectedWithoutHeartbeats) {
  const FailureReports reports = {make_report(Reason::heartbeat_lost, {2}), make_report(Reason::connection_closed, {0}),
                                  std::nullopt};
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(is_complete(reports, rank));
    const auto root_cause = find_root_cause(reports, rank);
    EXPECT_EQ(root_cause.failed_ranks, std::vector<int>{2});
    EXPECT_TRUE(root_cause.timed_out);
    EXPECT_NE(root_cause.message.find("rank 2 missed heartbeats for 30 s"), std::string::npos) << root_cause.message;
  }
  const auto store = find_root_cause({make_report(Reason::heartbeat_lost, {})}, 0);
  EXPECT_EQ(store.failed_ranks, std::vector<int>{});
  EXPECT_NE(store.message.find("the job's coordinator has not answered for 30 s"), std::string::npos) << store.message;
}

TEST(RootCause, ACycleNamesTheAwaitedRank) {
  const FailureReports reports = {make_report(Reason::timeout, {1}), make_report(Reason::timeout, {0})};
  EXPECT_EQ(find_root_cause(reports, 0).failed_ranks, std::vector<int>{1});
}

TEST(RootCause, ReportsAreCompleteWhenEveryChainEndsInAReport) {
  EXPECT_FALSE(is_complete({make_report(Reason::connection_closed, {1}), std::nullopt}, 0));
  EXPECT_TRUE(is_complete({make_report(Reason::connection_closed, {1}), std::nullopt}, 0, {1}))
      << "its process has ended";
  EXPECT_FALSE(is_complete({make_report(Reason::connection_closed, {1}), std::nullopt, std::nullopt}, 0, {2}));
  EXPECT_TRUE(is_complete(
      {make_report(Reason::connection_closed, {1}), std::nullopt, make_report(Reason::process_exited, {1})}, 0))
      << "rank 2 saw it";
  EXPECT_FALSE(is_complete(
      {make_report(Reason::connection_closed, {1}), make_report(Reason::connection_closed, {2}), std::nullopt}, 0));
  EXPECT_TRUE(
      is_complete({make_report(Reason::connection_closed, {1}), make_report(Reason::timeout, {0}), std::nullopt}, 0));
}

// The state of a rank that waits in a call on one of the communicators "job" and "model", both of all ranks.
WaitState state_in(const std::string& communicator, std::uint64_t number, std::uint64_t job_calls,
                   std::uint64_t model_calls) {
  return {.pending_calls = {{.communicator = communicator,
                             .number = number,
                             .text = communicator == "job" ? "save" : "sum"}},
          .communicators = {{"job", {.calls = job_calls, .members = {0, 1}}},
                            {"model", {.calls = model_calls, .members = {0, 1}}}}};
}

TEST(FindDeadlock, CallsOfDifferentCommunicatorsAreADeadlock) {
  // Rank 0 is in the third call on "job", rank 1 in the sixth call on "model". Neither rank has made the other's call.
  EXPECT_EQ(
      find_deadlock({state_in("job", 2, 3, 5), state_in("model", 5, 2, 6)}),
      "called on some ranks only: rank 0 waits in save of 'job', which rank 1 has not called; rank 1 waits in sum of "
      "'model', which rank 0 has not called. No rank can continue.");
}

TEST(FindDeadlock, ACallThatAllRanksMadeIsNoDeadlock) {
  EXPECT_EQ(find_deadlock({state_in("job", 2, 3, 5), state_in("job", 2, 3, 5)}), std::nullopt);
  // Rank 1 has made the call on "job", which the queue thread runs, and waits in a call that rank 0 has not made.
  EXPECT_EQ(find_deadlock({state_in("job", 2, 3, 5), state_in("model", 5, 3, 6)}), std::nullopt);
}

TEST(FindDeadlock, RanksBlockedInTheSameCallAreNamedTogether) {
  WaitState two = state_in("model", 5, 2, 6);
  WaitState one = state_in("job", 2, 3, 5);
  for (WaitState* state : {&one, &two}) {
    for (auto& [name, communicator] : state->communicators) communicator.members = {0, 1, 2};
  }
  const auto text = find_deadlock({two, one, two});
  ASSERT_TRUE(text);
  EXPECT_NE(text->find("ranks 0, 2 wait in sum of 'model', which rank 1 has not called"), std::string::npos) << *text;
  EXPECT_NE(text->find("rank 1 waits in save of 'job', which ranks 0, 2 have not called"), std::string::npos) << *text;
}

TEST(FindDeadlock, ACommunicatorThatARankHasNotMadeYet) {
  WaitState without = state_in("job", 2, 3, 5);
  without.communicators.erase("model");
  EXPECT_TRUE(find_deadlock({without, state_in("model", 0, 2, 1)}));
}

TEST(FindDeadlock, OneRunningRankMeansNoDeadlock) {
  WaitState third = state_in("job", 2, 3, 5);
  third.pending_calls.clear();
  WaitState none;
  EXPECT_EQ(find_deadlock({state_in("job", 2, 3, 5), state_in("model", 5, 2, 6), third}), std::nullopt);
  EXPECT_EQ(find_deadlock({none}), std::nullopt);
}

TEST(FindDeadlock, AMemberThatTheJobDoesNotHaveIsNoDeadlock) {
  WaitState state = state_in("job", 2, 3, 5);
  state.communicators["job"].members = {0, 7};
  EXPECT_EQ(find_deadlock({state}), std::nullopt);
}

TEST(RanksWithoutCall, CallsCountFromZero) {
  EXPECT_EQ(ranks_without_call({{0, 3}, {1, 2}, {4, 0}}, 2), (std::vector<int>{1, 4}));
  EXPECT_EQ(ranks_without_call({{0, 3}, {1, 3}}, 2), std::vector<int>{});
}

}  // namespace
}  // namespace tutti::flight::wait_graph_test
