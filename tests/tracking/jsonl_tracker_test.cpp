#include "tutti/tracking/jsonl_tracker.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "launch/tutti_process.h"
#include "tutti/core/error.h"

namespace tutti::jsonl_tracker_test {
namespace {

using nlohmann::json;
using test::content_of;
using test::TemporaryFolder;

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<json> lines_of(const std::filesystem::path& file) {
  std::vector<json> lines;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line, nullptr, false));
  return lines;
}

/// Every line has a time. Checks it, and removes it for the comparison.
json without_time(json line) {
  EXPECT_GT(line.at("time").get<double>(), 1e9);
  line.erase("time");
  return line;
}

TEST(JsonlTracker, WritesOneLinePerEvent) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "new" / "folder" / "metrics.jsonl";
  JsonlTracker tracker(file);
  tracker.start("first", {{"lr", 1e-3}, {"layers", std::int64_t{6}}, {"shuffle", true}, {"model", std::string("gpt")}},
                0);
  tracker.log(10, {{"loss", 0.1}, {"lr", 3.0}});
  tracker.log_text(10, "sample", "two\nlines \"quoted\"");
  tracker.flush();
  const auto lines = lines_of(file);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(without_time(lines[0]), json::parse(R"({"event":"start","run":"first","step":0,
                            "hyperparameters":{"layers":6,"lr":0.001,"model":"gpt","shuffle":true}})"));
  EXPECT_EQ(without_time(lines[1]), json::parse(R"({"event":"scalars","step":10,"values":{"loss":0.1,"lr":3.0}})"));
  EXPECT_EQ(without_time(lines[2]),
            json::parse(R"({"event":"text","step":10,"name":"sample","text":"two\nlines \"quoted\""})"));
}

// A limit of the file's size ends a write in the middle of a line, as a full disk does.
TEST(JsonlTracker, AFailedEventLeavesTheFileAsItWas) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "run.jsonl";
  JsonlTracker tracker(file);
  tracker.log(1, {{"loss", 1}});
  const auto before = content_of(file);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{.rlim_cur = before.size() + 10, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(tracker.log(2, {{"loss", 2}}), Error);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(content_of(file), before);
  tracker.log(3, {{"loss", 3}});
  const auto lines = lines_of(file);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1].at("step"), 3);
}

TEST(JsonlTracker, KeepsTheOrderOfValues) {
  const TemporaryFolder folder;
  JsonlTracker(folder.path() / "run.jsonl").log(1, {{"z", 1}, {"a", 2}});
  const auto text = content_of(folder.path() / "run.jsonl");
  EXPECT_LT(text.find("\"z\""), text.find("\"a\"")) << text;
}

TEST(JsonlTracker, WritesNumbersThatJsonDoesNotHaveAsStrings) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "run.jsonl";
  JsonlTracker tracker(file);
  tracker.start("run", {{"clip", infinity}}, 0);
  tracker.log(1, {{"a", std::nan("")}, {"b", infinity}, {"c", -infinity}});
  EXPECT_EQ(lines_of(file)[0]["hyperparameters"], json::parse(R"({"clip":"Infinity"})"));
  EXPECT_EQ(lines_of(file)[1]["values"], json::parse(R"({"a":"NaN","b":"Infinity","c":"-Infinity"})"));
}

TEST(JsonlTracker, KeepsEveryBitOfAValue) {
  const TemporaryFolder folder;
  const double value = 0.1 + 0.2;
  JsonlTracker(folder.path() / "run.jsonl").log(1, {{"a", value}});
  EXPECT_EQ(lines_of(folder.path() / "run.jsonl")[0]["values"]["a"].get<double>(), value);
}

TEST(JsonlTracker, AppendsToAnExistingFile) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "run.jsonl";
  JsonlTracker(file).log(1, {{"a", 1}});
  JsonlTracker(file).log(2, {{"a", 1}});
  EXPECT_EQ(lines_of(file).size(), 2U);
}

TEST(JsonlTracker, EndsAnIncompleteLineOfAKilledRun) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "run.jsonl";
  std::ofstream(file) << R"({"event":"sca)";
  JsonlTracker(file).log(2, {{"a", 1}});
  const auto lines = lines_of(file);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(lines[0].is_discarded());
  EXPECT_EQ(lines[1]["step"], 2);
}

TEST(JsonlTracker, WritesIntoAPipe) {
  const TemporaryFolder folder;
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  JsonlTracker tracker(pipe);
  tracker.log(3, {{"a", 1}});
  tracker.flush();
  std::array<char, 256> line{};
  ASSERT_GT(::read(reader, line.data(), line.size() - 1), 0);
  ::close(reader);
  EXPECT_EQ(json::parse(line.data()).at("step"), 3);
}

TEST(JsonlTracker, ReplacesBytesThatAreNotUtf8) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "run.jsonl";
  JsonlTracker(file).log_text(1, "sample", "a\xFFz");
  EXPECT_EQ(lines_of(file)[0]["text"], "a\uFFFDz");
}

TEST(JsonlTracker, NamesAFileThatItCannotWrite) {
  try {
    const JsonlTracker tracker("/proc/nowhere/run.jsonl");
    FAIL() << "wrote into /proc";
  } catch (const Error& error) {
    EXPECT_TRUE(test::contains(error.what(), "/proc/nowhere")) << error.what();
  }
}

TEST(JsonlTracker, ThrowsWhenTheDiskIsFull) {
  JsonlTracker tracker("/dev/full");
  EXPECT_THROW(tracker.log(1, {{"a", 1}}), Error);
}

}  // namespace
}  // namespace tutti::jsonl_tracker_test
