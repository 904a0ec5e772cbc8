// `tutti launch` with 2 and 3 ranks as processes that keep flight records, and `tutti inspect` over them.
#include "tutti/detail/flight/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "launch/tutti_process.h"
#include "support/temporary_folder.h"
#include "tutti/core/error.h"

namespace tutti::inspect_test {
namespace {

using test::TemporaryFolder;
using test::TuttiProcess;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> ranks(int count, const std::string& mode) {
  return {"launch", "-n", std::to_string(count), "--", TUTTI_FLIGHT_RANK, mode};
}

// The folder of records that the launcher's report names; empty if the report names none.
std::string folder_in(const std::string& report) {
  const std::string before = "`tutti inspect ";
  const auto begin = report.find(before);
  if (begin == std::string::npos) return "";
  const auto end = report.find('`', begin + 1);
  return report.substr(begin + before.size(), end - begin - before.size());
}

TEST(Inspect, TheLauncherReportsWhatRanksWereDoingWhenOneWasKilled) {
  const auto finished = test::run_tutti(ranks(3, "killed"));
  EXPECT_NE(finished.exit_code, 0);
  EXPECT_THAT(
      finished.err,
      AllOf(HasSubstr("Ranks 0 and 2 failed in barrier('second') (operation 1 of job, step 7, flight_rank.cpp:"),
            HasSubstr("Rank 1 never entered the call."),
            HasSubstr("Rank 1 last called barrier('first') (operation 0 of job, step 7, flight_rank.cpp:")));
  // The records remain for `tutti inspect`.
  const std::string folder = folder_in(finished.err);
  ASSERT_FALSE(folder.empty()) << finished.err;
  const auto inspected = test::run_tutti({"inspect", "--operations", "5", folder});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_THAT(inspected.out,
              AllOf(HasSubstr("Rank 1 never entered the call."), HasSubstr("Rank 0 (flight_rank, process ")));
  std::filesystem::remove_all(folder);
}

// Rank 1 throws and exits last, as a program with destructors to run does.
TEST(Inspect, TheLauncherNamesTheRankThatThrewThoughItExitsLast) {
  const auto finished = test::run_tutti(ranks(2, "throws"));
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err,
              AllOf(HasSubstr("tutti: rank 1 failed first: exit code 1\ntutti: its last lines:\n    the reason"),
                    HasSubstr("tutti: failed after it: rank 0 (exit code 1)")));
  std::filesystem::remove_all(folder_in(finished.err));
}

TEST(Inspect, TheLauncherDoesNotReportRecordsThatExplainNothing) {
  const auto finished = test::run_tutti(ranks(2, "refuses"));
  EXPECT_THAT(finished.err, AllOf(HasSubstr("    [ranks 0, 1] a wrong option"), Not(HasSubstr("last operations"))));
}

// Other jobs of this user may run too: so only the kind of the folder is known.
TEST(Inspect, WithoutAFolderAJobWithoutRecordsIsPassedOver) {
  const auto failed = test::run_tutti(ranks(3, "killed"));
  TuttiProcess newer(test::launch_script(1, "echo folder $TUTTI_FLIGHT_RECORDS; exec sleep 1000"));
  const std::string empty = newer.wait_for_line("folder ");
  const auto inspected = test::run_tutti({"inspect"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, AllOf(HasSubstr("job with records is /"), Not(HasSubstr(empty + "."))));
  newer.send(SIGTERM);
  newer.wait();
  std::filesystem::remove_all(folder_in(failed.err));
}

TEST(Inspect, WithoutAFolderARunningJobComesBeforeANewerOneThatHasEnded) {
  TuttiProcess hangs(ranks(3, "elsewhere"));
  hangs.wait_for_line("is elsewhere");
  const auto failed = test::run_tutti(ranks(3, "killed"));
  const auto inspected = test::run_tutti({"inspect"});
  EXPECT_THAT(inspected.out,
              AllOf(HasSubstr("The newest running job with records is /"), Not(HasSubstr(folder_in(failed.err)))));
  hangs.send(SIGTERM);
  const auto ended = hangs.wait();
  for (const auto& report : {failed.err, ended.err}) {
    if (const std::string folder = folder_in(report); !folder.empty()) std::filesystem::remove_all(folder);
  }
}

// Python's ranks connect over a store.
TEST(Inspect, RanksConnectedOverAStoreAreRecordedToo) {
  const TemporaryFolder folder;
  auto command = ranks(3, "killed");
  command.push_back(folder.path() / "store");
  const auto finished = test::run_tutti(command);
  EXPECT_NE(finished.exit_code, 0);
  EXPECT_THAT(
      finished.err,
      AllOf(HasSubstr("Ranks 0 and 2 failed in barrier('second') (operation 1 of job, step 7, flight_rank.cpp:"),
            HasSubstr("Rank 1 never entered the call.")));
  std::filesystem::remove_all(folder_in(finished.err));
}

TEST(Inspect, ASecondGroupOfAllRanksHasItsOwnOperations) {
  const TemporaryFolder folder;
  auto command = ranks(2, "again");
  command.push_back(folder.path() / "store");
  TuttiProcess job(command, {.variables = {"TUTTI_FLIGHT_RECORDS=" + folder.path().string()}});
  const auto finished = job.wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(inspect({.folders = {folder.path()}, .last_operations = 9}),
              AllOf(HasSubstr("broadcast_object(root 0) (operation 0 of job#2, "), Not(HasSubstr("First difference"))));
}

TEST(Inspect, ARunningJobShowsTheAbsentRank) {
  const TemporaryFolder folder;
  TuttiProcess job(ranks(3, "elsewhere"),
                   {.variables = {"TUTTI_FLIGHT_RECORDS=" + folder.path().string(), "OMP_NUM_THREADS=1"}});
  job.wait_for_line("is elsewhere");
  std::string text;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (text.find("Ranks 0 and 2 are in barrier('second')") == std::string::npos &&
         std::chrono::steady_clock::now() < deadline) {
    text = inspect({.folders = {folder.path()}});
    std::this_thread::yield();
  }
  EXPECT_THAT(text,
              AllOf(HasSubstr("3 ranks; all processes run."), HasSubstr("Ranks 0 and 2 are in barrier('second')"),
                    HasSubstr("Rank 1 did not enter the call."), HasSubstr("Rank 1 last called barrier('first')")));
  job.send(SIGTERM);
  job.wait();
  EXPECT_THAT(inspect({.folders = {folder.path()}}), HasSubstr("all processes have ended"));
}

TEST(Inspect, ReportsTheFirstMismatchOfAJob) {
  const auto finished = test::run_tutti(ranks(2, "differs"));
  EXPECT_THAT(finished.err, ContainsRegex("First difference: operation 1 of job is barrier\\('second'\\) on rank 0 "
                                          "\\(flight_rank.cpp:[0-9]+\\) and broadcast_object\\(root 0\\) on rank 1 "
                                          "\\(flight_rank.cpp:[0-9]+\\)\\."));
  std::filesystem::remove_all(folder_in(finished.err));
}

TEST(Inspect, AJobThatWentWellLeavesNoRecordsButThoseAskedFor) {
  const TemporaryFolder folder;
  TuttiProcess job(ranks(2, "well"), {.variables = {"TUTTI_FLIGHT_RECORDS=" + folder.path().string()}});
  const auto finished = job.wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.err, Not(HasSubstr("tutti inspect")));
  EXPECT_THAT(inspect({.folders = {folder.path()}}),
              AllOf(HasSubstr("No rank waits for another."), HasSubstr("The last operation: barrier('second')")));
}

TEST(Inspect, RanksOfAnEarlierJobInTheFolderAreNotReported) {
  const TemporaryFolder folder;
  const TuttiProcess::Options options{.variables = {"TUTTI_FLIGHT_RECORDS=" + folder.path().string()}};
  EXPECT_NE(TuttiProcess(ranks(3, "killed"), options).wait().exit_code, 0);
  EXPECT_THAT(inspect({.folders = {folder.path()}}), HasSubstr("Ranks 0 and 2 failed in barrier('second')"));
  const auto finished = TuttiProcess(ranks(2, "well"), options).wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(inspect({.folders = {folder.path()}}),
              AllOf(HasSubstr("No rank waits for another."), Not(HasSubstr("failed"))));
}

TEST(Inspect, AnEmptyVariableMeansNone) {
  TuttiProcess job(ranks(2, "killed"), {.variables = {"TUTTI_FLIGHT_RECORDS="}});
  EXPECT_THAT(job.wait().err, Not(HasSubstr("tutti inspect")));
}

TEST(Inspect, AFolderWithoutRecordsIsRefused) {
  const TemporaryFolder folder;
  EXPECT_THROW(inspect({.folders = {folder.path()}}), UsageError);
  EXPECT_THROW(inspect({.folders = {folder.path() / "not there"}}), UsageError);
  EXPECT_EQ(test::run_tutti({"inspect", folder.path().string()}).exit_code, 2);
}

}  // namespace
}  // namespace tutti::inspect_test
