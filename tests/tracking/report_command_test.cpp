// `tutti report`, the program.
#include <gtest/gtest.h>

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
