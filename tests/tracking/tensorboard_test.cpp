// Event files, read by TensorBoard's own reader.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "launch/tutti_process.h"
#include "tutti/core/error.h"
#include "tutti/tracking/tensorboard_tracker.h"

namespace tutti::tensorboard_test {
namespace {

using nlohmann::json;
using test::TemporaryFolder;

std::set<std::string> files_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

class ReadByTensorBoard : public testing::Test {
 protected:
  void SetUp() override {
    const char* python = ::getenv("TUTTI_READERS_PYTHON");  // NOLINT(concurrency-mt-unsafe): one thread
    if (python == nullptr) {
      GTEST_SKIP() << "set TUTTI_READERS_PYTHON to a Python that can import tensorboard (pip install tensorboard)";
    }
    python_ = python;
  }

  json read() const {
    const auto output = scratch_.path() / "found.json";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    std::vector<std::string> words{python_, TUTTI_READ_EVENTS, folder().string()};
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t child = -1;
    EXPECT_EQ(::posix_spawnp(&child, python_.c_str(), &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    return json::parse(std::ifstream(output));
  }

  std::filesystem::path folder() const { return scratch_.path() / "run"; }

 private:
  TemporaryFolder scratch_;
  std::string python_;
};

TEST_F(ReadByTensorBoard, FindsScalarsTextsAndHyperparameters) {
  TensorBoardTracker tracker(folder());
  tracker.start("first", {{"lr", 0.125}, {"layers", std::int64_t{6}}, {"on", true}, {"model", std::string("gpt")}}, 0);
  tracker.log(1, {{"loss", 2.5}, {"eval/loss", 0.1}});
  tracker.log(300, {{"loss", std::nan("")}, {"eval/loss", -1e30}});
  tracker.log_text(300, "sample", "Zeile eins\n\u00FCber");
  tracker.flush();
  const auto found = read();
  EXPECT_EQ(found["scalars"], json::parse(R"({"loss": [[1, "2.5"], [300, "nan"]],
                                              "eval/loss": [[1, "0.10000000149011612"], [300, "-1.0000000150474662e+30"]]})"));
  EXPECT_EQ(found["texts"]["sample"], json::parse(R"([[300, "Zeile eins\nüber"]])"));
  EXPECT_EQ(found["texts"]["hyperparameters"][0][1],
            "| first | |\n|---|---|\n| layers | 6 |\n| lr | 0.125 |\n| model | gpt |\n| on | true |\n");
  EXPECT_EQ(found["hyperparameters"],
            json::parse(R"({"layers": "6.0", "lr": "0.125", "model": "'gpt'", "on": "True"})"));
  EXPECT_EQ(found["started"], true);
}

TEST_F(ReadByTensorBoard, DropsStepsThatAResumptionVoids) {
  {
    TensorBoardTracker tracker(folder());
    tracker.start("first", {}, 0);
    for (const int step : {10, 20, 30, 40}) tracker.log(step, {{"loss", step}});
  }
  TensorBoardTracker tracker(folder());
  tracker.start("first", {}, 20);
  tracker.log(30, {{"loss", 31}});
  tracker.flush();
  EXPECT_EQ(read()["scalars"]["loss"], json::parse(R"([[10, "10.0"], [20, "20.0"], [30, "31.0"]])"));
}

TEST_F(ReadByTensorBoard, DropsEverythingIfARunStartsAgain) {
  {
    TensorBoardTracker tracker(folder());
    tracker.start("first", {}, 0);
    tracker.log(0, {{"loss", 5}});
    tracker.log(10, {{"loss", 6}});
  }
  TensorBoardTracker tracker(folder());
  tracker.start("first", {}, 0);
  tracker.log(10, {{"loss", 1}});
  tracker.flush();
  EXPECT_EQ(read()["scalars"]["loss"], json::parse(R"([[10, "1.0"]])"));
}

TEST(TensorBoardTracker, NamesItsFilesInTheOrderOfTheirCreation) {
  const TemporaryFolder folder;
  const auto run = folder.path() / "new" / "run";
  { const TensorBoardTracker first(run); }
  // A file of a clock that was ahead.
  std::ofstream(run / "events.out.tfevents.4000000000.host.1.0") << "x";
  const auto before = files_in(run);
  { const TensorBoardTracker second(run); }
  { const TensorBoardTracker third(run); }
  const auto after = files_in(run);
  EXPECT_EQ(after.size(), 4U);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin()));
  EXPECT_TRUE(after.rbegin()->starts_with("events.out.tfevents.4000000002.")) << *after.rbegin();
}

TEST(TensorBoardTracker, NamesAFolderThatItCannotWrite) {
  EXPECT_THROW(TensorBoardTracker("/proc/nowhere"), Error);
}

}  // namespace
}  // namespace tutti::tensorboard_test
