// `tutti report`, the program.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "launch/tutti_process.h"
#include "tutti/tracking/jsonl_tracker.h"

namespace tutti::test::report_command_test {
namespace {

void write_run(const std::filesystem::path& file) {
  JsonlTracker tracker(file);
  tracker.start("first", {}, 0);
  tracker.log(1, {{"loss", 2.0}});
}

TEST(ReportCommand, WritesThePageNextToTheFirstRun) {
  const TemporaryFolder folder;
  write_run(folder.path() / "run" / "metrics.jsonl");
  const auto page = folder.path() / "run" / "report.html";
  for (const auto& run : {folder.path() / "run", folder.path() / "run" / "metrics.jsonl"}) {
    std::filesystem::remove(page);
    const auto done = run_tutti({"report", run.string()});
    EXPECT_EQ(done.exit_code, 0) << done.err;
    EXPECT_EQ(done.out, "The report is in " + page.string() + ": open it in a browser.\n");
    EXPECT_TRUE(contains(content_of(page), "<h1>first</h1>"));
  }
}

TEST(ReportCommand, RefusesToReplaceARun) {
  const TemporaryFolder folder;
  const auto metrics = folder.path() / "run" / "metrics.jsonl";
  write_run(metrics);
  write_run(folder.path() / "b.jsonl");
  const auto before = content_of(metrics);
  for (const auto& run : {folder.path() / "run", metrics}) {
    const auto done = run_tutti({"report", (folder.path() / "b.jsonl").string(), run.string(), "-o", metrics.string()});
    EXPECT_EQ(done.exit_code, 2);
    EXPECT_TRUE(contains(done.err, "cannot replace the run " + metrics.string())) << done.err;
    EXPECT_EQ(content_of(metrics), before);
  }
}

// A limit of the file's size ends a write in the middle, as a full disk does.
TEST(ReportCommand, AFailedReportLeavesTheEarlierPage) {
  const TemporaryFolder folder;
  write_run(folder.path() / "a.jsonl");
  const auto page = folder.path() / "report.html";
  std::ofstream(page) << "earlier";
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);  // the child inherits this and the limit
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{.rlim_cur = 1000, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto done = run_tutti({"report", (folder.path() / "a.jsonl").string()});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_TRUE(contains(done.err, "cannot write " + page.string())) << done.err;
  EXPECT_EQ(content_of(page), "earlier");
  EXPECT_FALSE(std::filesystem::exists(page.string() + ".part"));
}

TEST(ReportCommand, ReadsARunOfTheWorkingDirectory) {
  const TemporaryFolder folder;
  write_run(folder.path() / "a.jsonl");
  const auto done = TuttiProcess({"report", "a.jsonl"}, {.working_directory = folder.path()}).wait();
  EXPECT_EQ(done.out, "The report is in report.html: open it in a browser.\n") << done.err;
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "report.html"));
}

TEST(ReportCommand, AcceptsSeveralRunsAnOutputFileAndATitle) {
  const TemporaryFolder folder;
  write_run(folder.path() / "a.jsonl");
  write_run(folder.path() / "b.jsonl");
  const auto page = folder.path() / "page.html";
  const auto done = run_tutti({"report", (folder.path() / "a.jsonl").string(), (folder.path() / "b.jsonl").string(),
                               "-o", page.string(), "--title", "Two runs"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_TRUE(contains(content_of(page), "<h1>Two runs</h1>"));
  EXPECT_TRUE(contains(content_of(page), "first (2)"));
}

TEST(ReportCommand, RefusesBadInputInOneLine) {
  const TemporaryFolder folder;
  write_run(folder.path() / "a.jsonl");
  const auto expect_refusal = [](const std::vector<std::string>& arguments, const std::string& part) {
    const auto done = run_tutti(arguments);
    EXPECT_EQ(done.exit_code, 2) << part;
    EXPECT_EQ(lines_with(done.err, ""), 1) << done.err;
    EXPECT_TRUE(contains(done.err, part)) << done.err;
  };
  expect_refusal({"report"}, "RUN");
  expect_refusal({"report", "/nowhere"}, "there is no run in /nowhere");
  expect_refusal({"report", (folder.path() / "a.jsonl").string(), "-o", "/proc/page.html"},
                 "cannot write /proc/page.html");
  expect_refusal({"report", (folder.path() / "a.jsonl").string(), "--format", "pdf"}, "tutti report --help");
  expect_refusal({"report", (folder.path() / "a.jsonl").string(), "--titel", "x"},
                 "there is no option --titel: did you mean --title?");
  expect_refusal({"report", "/dev/zero"}, "there is no run in /dev/zero");
  EXPECT_EQ(run_tutti({"report", "--help"}).exit_code, 0);
}

}  // namespace
}  // namespace tutti::test::report_command_test
