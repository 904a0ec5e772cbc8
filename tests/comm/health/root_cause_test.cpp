// One process. The root cause, from the failure reports of the ranks.
#include "comm/health/root_cause.h"

#include <gtest/gtest.h>

#include "comm/rendezvous/store_bytes.h"

namespace tutti::comm::root_cause_test {
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

TEST(RootCause, ARankWithoutAReportIsTheRootCause) {
  const FailureReports reports = {make_report(Reason::timeout, {2}), make_report(Reason::timeout, {2}), std::nullopt};
  const auto root_cause = find_root_cause(reports, 0);
  EXPECT_EQ(root_cause.failed_ranks, std::vector<int>{2});
  EXPECT_TRUE(root_cause.timed_out);
  EXPECT_EQ(root_cause.message,
            "all_reduce 'loss' (operation 17): rank 2 did not enter the call within 30 s; ranks 0, 1 were waiting");
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

TEST(RootCause, ALateRankIsReportedAsLate) {
  // The ranks that timed out may have closed the communicator or exited by then.
  for (const auto reason : {Reason::connection_closed, Reason::peer_closed, Reason::process_exited}) {
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
  // What it left counts: here, that it ended because of another one.
  const FailureReports told = {make_report(Reason::process_exited, {1}), make_report(Reason::connection_closed, {2}),
                               std::nullopt};
  EXPECT_FALSE(is_complete(told, 0));
  EXPECT_EQ(find_root_cause(told, 0).failed_ranks, std::vector<int>{2});
  EXPECT_TRUE(is_complete({make_report(Reason::process_stopped, {1}), std::nullopt}, 0));
  EXPECT_TRUE(is_complete({make_report(Reason::peer_closed, {1}), std::nullopt}, 0));
  const auto left = find_root_cause({make_report(Reason::peer_closed, {1}), std::nullopt}, 0);
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
  EXPECT_NE(store.message.find("the launcher's store has not answered for 30 s"), std::string::npos) << store.message;
}

TEST(RootCause, ACycleNamesTheAwaitedRank) {
  const FailureReports reports = {make_report(Reason::timeout, {1}), make_report(Reason::timeout, {0})};
  EXPECT_EQ(find_root_cause(reports, 0).failed_ranks, std::vector<int>{1});
}

TEST(RootCause, TheListKeepsTheLastEntryOfEachRank) {
  const std::string report = make_report(Reason::connection_closed, {3, 1}).to_text();
  const std::string list =
      encode_entry(2, report) + encode_entry(0, "") + encode_entry(2, "again 7 x\n") + encode_entry(1, report);
  const auto entries = parse_entries(list, 4);
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[0], "");
  EXPECT_EQ(entries[1], report);
  EXPECT_EQ(entries[2], "again 7 x\n");
  EXPECT_FALSE(entries[3]);
  EXPECT_EQ(parse_entries("", 1), std::vector<std::optional<std::string>>(1));
}

TEST(RootCause, AMalformedListIsReadUpToTheError) {
  for (const std::string wrong : {"4 1 x", "-1 1 x", "1 99 x", "1 18446744073709551615 x", "1", "1 2", "x", "1 -1 x"}) {
    const auto entries = parse_entries(encode_entry(0, "fine") + wrong, 2);
    EXPECT_EQ(entries[0], "fine") << wrong;
    EXPECT_FALSE(entries[1]) << wrong;
  }
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
      {make_report(Reason::connection_closed, {1}), std::nullopt, make_report(Reason::peer_closed, {1})}, 0));
  EXPECT_FALSE(is_complete(
      {make_report(Reason::connection_closed, {1}), make_report(Reason::connection_closed, {2}), std::nullopt}, 0));
  EXPECT_TRUE(
      is_complete({make_report(Reason::connection_closed, {1}), make_report(Reason::timeout, {0}), std::nullopt}, 0));
}

}  // namespace
}  // namespace tutti::comm::root_cause_test
