#include "tracking/report/run_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "launch/tutti_process.h"
#include "tutti/core/error.h"
#include "tutti/tracking/jsonl_tracker.h"

namespace tutti::run_reader_test {
namespace {

RunRecord parse(const std::string& text) {
  std::istringstream lines(text);
  return parse_run(lines);
}

std::string start(int time, int step, const std::string& hyperparameters = "{}") {
  return R"({"event":"start","time":)" + std::to_string(time) + R"(,"run":"run","step":)" + std::to_string(step) +
         R"(,"hyperparameters":)" + hyperparameters + "}\n";
}

std::string loss(int time, int step, const std::string& value) {
  return R"({"event":"scalars","time":)" + std::to_string(time) + R"(,"step":)" + std::to_string(step) +
         R"(,"values":{"loss":)" + value + "}}\n";
}

std::vector<std::int64_t> steps_of(const Series& series) {
  std::vector<std::int64_t> steps;
  for (const auto& point : series.points) steps.push_back(point.step);
  return steps;
}

using Steps = std::vector<std::int64_t>;

TEST(RunReader, ReadsTheFileOfATracker) {
  const test::TemporaryFolder folder;
  {
    JsonlTracker tracker(folder.path() / "metrics.jsonl");
    tracker.start("first", {{"lr", 0.001}, {"n", std::int64_t{3}}, {"on", true}, {"model", std::string("gpt")}}, 0);
    tracker.log(1, {{"loss", 0.1 + 0.2}, {"lr", std::nan("")}});
    tracker.log(2, {{"loss", std::numeric_limits<double>::infinity()}});
    tracker.log_text(2, "sample", "text\n");
  }
  const auto run = read_run(folder.path());
  EXPECT_EQ(run.name, "first");
  EXPECT_EQ(run.hyperparameters,
            (std::map<std::string, std::string>{{"lr", "0.001"}, {"n", "3"}, {"on", "true"}, {"model", "gpt"}}));
  ASSERT_EQ(run.series.size(), 2U);
  EXPECT_EQ(run.series[0].name, "loss");
  EXPECT_EQ(run.series[0].points[0].value, 0.1 + 0.2);
  EXPECT_EQ(run.series[0].points[1].value, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(run.find("lr")->points[0].value));
  ASSERT_EQ(run.texts.size(), 1U);
  EXPECT_EQ(run.texts[0].text, "text\n");
  EXPECT_EQ(run.last_step, 2);
  EXPECT_EQ(run.unread_lines, 0U);
  EXPECT_GT(run.started, 1e9);
}

TEST(RunReader, DropsStepsThatAResumptionVoids) {
  const auto run = parse(start(0, 0) + loss(1, 10, "5") + loss(2, 20, "4") + loss(3, 30, "3") + loss(4, 40, "2") +
                         start(100, 20) + loss(101, 30, "3.5"));
  EXPECT_EQ(steps_of(*run.find("loss")), (Steps{10, 20, 30}));
  EXPECT_EQ(run.find("loss")->points.back().value, 3.5);
  EXPECT_EQ(run.void_values, 2U);
  EXPECT_EQ(run.session_steps, (Steps{0, 20}));
  EXPECT_EQ(run.last_step, 30);
}

TEST(RunReader, DropsEverythingIfARunStartsAgain) {
  const auto run =
      parse(start(0, 0, R"({"a":1})") + loss(1, 0, "5") + loss(2, 20, "4") + start(50, 0) + loss(53, 5, "3"));
  EXPECT_EQ(steps_of(*run.find("loss")), (Steps{5}));
  EXPECT_EQ(run.session_steps, (Steps{0}));
  EXPECT_TRUE(run.hyperparameters.empty());
  EXPECT_DOUBLE_EQ(run.started, 50);
  EXPECT_DOUBLE_EQ(run.wall_seconds, 3);
}

TEST(RunReader, DropsResumptionsThatALaterResumptionVoids) {
  const auto run = parse(start(0, 0) + start(1, 40) + start(2, 20));
  EXPECT_EQ(run.session_steps, (Steps{0, 20}));
}

TEST(RunReader, CountsTheTimeOfSessionsOnly) {
  const auto run = parse(start(10, 0) + loss(15, 1, "1") + start(1000, 1) + loss(1007, 2, "1"));
  EXPECT_DOUBLE_EQ(run.wall_seconds, 12);
  EXPECT_DOUBLE_EQ(run.started, 10);
}

TEST(RunReader, SkipsAndCountsLinesThatItCannotRead) {
  const std::string torn = R"({"event":"scalars","time":3,"st)";
  const auto run = parse(start(0, 0) + torn + "\n" + "[1]\n" + "{\"event\":\"other\",\"time\":1,\"step\":2}\n" +
                         "{\"event\":5,\"time\":1,\"step\":2}\n\n" + loss(2, 20, "4") + torn);
  EXPECT_EQ(steps_of(*run.find("loss")), (Steps{20}));
  EXPECT_EQ(run.unread_lines, 5U);
}

TEST(RunReader, SkipsAndCountsDeeplyNestedLines) {
  constexpr std::size_t deep = 1'000'000;
  const std::string lists = std::string(deep, '[') + std::string(deep, ']');
  const auto run = parse(start(0, 0) + start(1, 10, "{\"a\":" + lists + "}") + lists + "\n" + "{\"event\":" + lists +
                         ",\"time\":1,\"step\":2}\n" + loss(2, 20, "4"));
  EXPECT_EQ(steps_of(*run.find("loss")), (Steps{20}));
  EXPECT_EQ(run.session_steps, (Steps{0}));
  EXPECT_EQ(run.unread_lines, 3U);
}

TEST(RunReader, SkipsAndCountsStepsThatNoRunHas) {
  const auto line = [](const std::string& kind, const std::string& step) {
    return R"({"event":")" + kind + R"(","time":1,"step":)" + step + R"(,"values":{"loss":1},"hyperparameters":{}})" +
           "\n";
  };
  std::string lines = start(0, 0) + loss(2, 20, "4");
  for (const std::string step : {"9223372036854775807", "18446744073709551615", "9007199254740993", "-1"}) {
    lines += line("start", step) + line("scalars", step);
  }
  const auto run = parse(lines);
  EXPECT_EQ(steps_of(*run.find("loss")), (Steps{20}));
  EXPECT_EQ(run.session_steps, (Steps{0}));
  EXPECT_EQ(run.unread_lines, 8U);
}

TEST(RunReader, ReadsAFileWhoseFirstLineIsLost) {
  const auto run = parse(loss(5, 20, "4") + loss(9, 30, "4"));
  EXPECT_EQ(run.session_steps, (Steps{20}));
  EXPECT_DOUBLE_EQ(run.wall_seconds, 4);
}

TEST(RunReader, KeepsTheLaterValueOfAStep) {
  const auto run = parse(start(0, 0) + loss(1, 10, "5") + loss(2, 10, "4"));
  ASSERT_EQ(run.find("loss")->points.size(), 1U);
  EXPECT_EQ(run.find("loss")->points[0].value, 4);
}

TEST(RunReader, NamesTheProblemOfAPath) {
  const test::TemporaryFolder folder;
  EXPECT_THROW(read_run(folder.path() / "missing.jsonl"), UsageError);
  EXPECT_THROW(read_run(folder.path()), UsageError);
  std::ofstream(folder.path() / "metrics.jsonl") << "{\"loss\": 3}\n";
  try {
    read_run(folder.path());
    FAIL() << "read a foreign file";
  } catch (const UsageError& error) {
    EXPECT_TRUE(test::contains(error.what(), "metrics.jsonl")) << error.what();
  }
}

}  // namespace
}  // namespace tutti::run_reader_test
