// examples/trainer as a user runs it, and with killed processes: 1 and 2 ranks as processes.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <regex>
#include <set>

#include "launch/tutti_process.h"
#include "tutti/checkpoint/checkpoint_folder.h"

namespace tutti::test::trainer_program_test {
namespace {

constexpr int kills = 20;
constexpr const char* seed_variable = "TUTTI_TEST_SEED";  // seed of the times at which processes are killed

/// A text that is equal on every machine.
std::filesystem::path write_text(const std::filesystem::path& folder) {
  const auto file = folder / "text";
  std::ofstream text(file);
  for (int i = 0; i < 4000; ++i) text << "line " << i << ": " << i * i % 97 << " and " << i * 7 % 31 << "\n";
  return file;
}

struct Job {
  std::filesystem::path text;
  std::filesystem::path project;
  int steps = 200;
  std::vector<std::string> more{};
  std::vector<std::string> launch_options{};

  std::vector<std::string> words(int ranks) const {
    std::vector<std::string> all{"launch", "-n", std::to_string(ranks)};
    all.insert(all.end(), launch_options.begin(), launch_options.end());
    all.insert(all.end(),
               {"--", TRAINER_PROGRAM, "--data", text, "--project", project, "--steps", std::to_string(steps)});
    all.insert(all.end(), {"--width", "32", "--layers", "1", "--heads", "2", "--context", "32", "--accumulation", "3"});
    all.insert(all.end(), {"--save-every", "7", "--evaluate-every", "50", "--ema", "0.9", "--warmup", "20"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

std::string digest_in(const std::string& output) {
  std::smatch match;
  return std::regex_search(output, match, std::regex("digest ([0-9a-f]{8})")) ? match[1].str() : "";
}

/// The step of the newest checkpoint by folder name, or 0. Folders may appear and disappear during the call.
int newest_step(const std::filesystem::path& project) {
  const std::regex name("checkpoint_[0-9]+_step_([0-9]+)");
  int newest = 0;
  std::error_code gone;
  for (std::filesystem::directory_iterator entry(project / "checkpoints", gone), end; !gone && entry != end;
       entry.increment(gone)) {
    std::smatch match;
    const std::string text = entry->path().filename().string();
    if (std::regex_match(text, match, name)) newest = std::max(newest, std::stoi(match[1]));
  }
  return newest;
}

/// The ranks' processes: children of the guards that the launcher started.
std::vector<pid_t> ranks_of(pid_t launcher) {
  std::vector<pid_t> ranks;
  for (const pid_t guard : children_of(launcher)) {
    for (const pid_t rank : children_of(guard)) ranks.push_back(rank);
  }
  return ranks;
}

class TrainerProgram : public testing::Test {
 protected:
  std::string digest_of_a_whole_run(int ranks, Job job) {
    job.project = folder_.path() / "whole";
    const Finished finished = run_tutti(job.words(ranks));
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    return digest_in(finished.out);
  }
  Job job() { return {.text = text_, .project = folder_.path() / "project"}; }

  TemporaryFolder folder_;
  std::filesystem::path text_ = write_text(folder_.path());
};

// Sends SIGKILL to the launcher or to a rank: half of the time while processes start, else some steps later. A run that
// ends before the kill is started again.
TEST_F(TrainerProgram, AfterRandomKillsItEndsLikeAnUninterruptedRun) {
  Job killed = job();
  killed.steps = 1500;
  const std::string expected = digest_of_a_whole_run(2, killed);
  ASSERT_NE(expected, "");
  killed.more = {"--resume"};
  killed.launch_options = {"--grace", "1"};
  const char* const chosen = std::getenv(seed_variable);
  const unsigned seed = chosen != nullptr ? static_cast<unsigned>(std::stoul(chosen)) : std::random_device{}();
  std::cout << seed_variable << "=" << seed << std::endl;
  std::mt19937 random(seed);
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  constexpr int most_steps_ahead = 100;
  static_assert(kills / 2 * most_steps_ahead < 1500, "the run must not end before it is struck");
  int resumed = 0;
  for (int struck = 0; struck < kills;) {
    TuttiProcess process(killed.words(2));
    bool ended = false;
    if (struck % 2 == 0) {
      const int until = newest_step(killed.project) + draw(1, most_steps_ahead);
      while (!ended && newest_step(killed.project) < until) ended = process.ends_within(std::chrono::milliseconds(2));
    }
    if (ended || process.ends_within(std::chrono::milliseconds(draw(0, struck % 2 == 0 ? 50 : 900)))) {
      const Finished finished = process.wait();
      ASSERT_EQ(finished.exit_code, 0) << finished.err;
      ASSERT_EQ(digest_in(finished.out), expected);
      std::filesystem::remove_all(killed.project);
      continue;
    }
    const std::vector<pid_t> ranks = ranks_of(process.pid());
    if (struck % 4 < 2 || ranks.empty()) {
      process.send(SIGKILL);
    } else {
      ::kill(ranks[static_cast<std::size_t>(struck) % ranks.size()], SIGKILL);
    }
    process.wait();
    for (const pid_t rank : ranks) ASSERT_TRUE(exits_soon(rank));
    // Every folder with a checkpoint's name is complete.
    for (const CheckpointInfo& info : CheckpointFolder(killed.project / "checkpoints").all()) {
      ASSERT_NO_THROW(read_checkpoint(info.folder));
      resumed = std::max<int>(resumed, static_cast<int>(info.step));
    }
    ++struck;
  }
  std::cout << "struck " << kills << " times, the last checkpoint then at step " << resumed << " of " << killed.steps
            << std::endl;
  const Finished finished = run_tutti(killed.words(2));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(digest_in(finished.out), expected);
}

TEST_F(TrainerProgram, TheLauncherRestartsIt) {
  Job restarted = job();
  const std::string expected = digest_of_a_whole_run(2, restarted);
  restarted.more = {"--resume"};
  restarted.launch_options = {"--max-restarts", "2", "--grace", "1"};
  restarted.steps = 200;
  TuttiProcess process(restarted.words(2));
  // The first line shows that training has started. Then one rank is killed.
  process.wait_for_line("rank 0");
  const auto ranks = ranks_of(process.pid());
  ASSERT_EQ(ranks.size(), 2U);
  ::kill(ranks[1], SIGKILL);
  const Finished finished = process.wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(digest_in(finished.out), expected);
  EXPECT_TRUE(contains(finished.err, "signal 9")) << finished.err;
}

TEST_F(TrainerProgram, CtrlCSavesAndTheRunResumes) {
  Job interrupted = job();
  interrupted.steps = 600;
  const std::string expected = digest_of_a_whole_run(2, interrupted);
  {
    TuttiProcess process(interrupted.words(2));
    process.wait_for_line("rank 0");
    process.send(SIGINT);
    const Finished finished = process.wait();
    EXPECT_TRUE(contains(finished.out, "stopped by a signal")) << finished.out << finished.err;
    EXPECT_EQ(digest_in(finished.out), "") << finished.out;  // the run is not complete
    EXPECT_EQ(finished.exit_code, 130) << finished.err;
  }
  interrupted.more = {"--resume"};
  const Finished finished = run_tutti(interrupted.words(2));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(digest_in(finished.out), expected);
}

// The launcher has received no signal, so the exit code is that of the program.
TEST_F(TrainerProgram, ASignalToARankEndsTheProgramWithItsOwnExitCode) {
  Job interrupted = job();
  interrupted.steps = 100'000;
  TuttiProcess process(interrupted.words(2));
  process.wait_for_line("rank 0");
  const auto ranks = ranks_of(process.pid());
  ASSERT_EQ(ranks.size(), 2U);
  ::kill(ranks[1], SIGINT);
  const Finished finished = process.wait();
  EXPECT_TRUE(contains(finished.out, "stopped by a signal")) << finished.out << finished.err;
  EXPECT_TRUE(contains(finished.err, "a signal (SIGINT or SIGTERM) stopped the run")) << finished.err;
  EXPECT_EQ(finished.exit_code, 130) << finished.err;
}

TEST_F(TrainerProgram, TrainsInEveryPrecisionAndReportsIt) {
  std::set<std::string> digests;
  for (const std::string precision : {"no", "bf16", "fp16"}) {
    Job mixed = job();
    mixed.project = folder_.path() / precision;
    mixed.steps = 30;
    mixed.more = {"--precision", precision};
    const Finished finished = run_tutti(mixed.words(1));
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    EXPECT_NE(digest_in(finished.out), "");
    digests.insert(digest_in(finished.out));
    const Finished report = run_tutti({"report", mixed.project});
    EXPECT_EQ(report.exit_code, 0) << report.err;
    const std::string page = content_of(mixed.project / "report.html");
    const std::regex precision_row("precision</[^>]+>\\s*<[^>]+>" + precision + "<");
    EXPECT_TRUE(std::regex_search(page, precision_row)) << page.substr(0, 4000);
  }
  EXPECT_EQ(digests.size(), 3U) << "two precisions gave the same bits";
}

TEST_F(TrainerProgram, TheLocalSgdExampleTrains) {
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"launch", "-n", "2", "--", LOCAL_SGD_PROGRAM, "--data", text_, "--steps", "17"};
    words.insert(words.end(), more.begin(), more.end());
    return run_tutti(words);
  };
  const Finished local = run({});
  EXPECT_EQ(local.exit_code, 0) << local.err;
  // Two rounds within the run and one at its end.
  EXPECT_TRUE(contains(local.out, "3 rounds of local updates")) << local.out;
  const Finished synchronous = run({"--disabled"});
  EXPECT_EQ(synchronous.exit_code, 0) << synchronous.err;
  EXPECT_TRUE(contains(synchronous.out, "0 rounds of local updates")) << synchronous.out;
}

// SIGKILL to a rank at any point of a round. Local models, outer momentum and an exchange in flight are resumed.
TEST_F(TrainerProgram, KilledLocalSGDResumesToTheSameDigest) {
  for (const std::vector<std::string>& method : {std::vector<std::string>{}, {"--diloco"}}) {
    const auto project = folder_.path() / ("local" + std::to_string(method.size()));
    const auto words = [&](const std::filesystem::path& folder, const std::string& steps) {
      std::vector<std::string> all{"launch", "-n", "2", "--grace", "1", "--", LOCAL_SGD_PROGRAM};
      all.insert(all.end(), {"--data", text_, "--steps", steps, "--project", folder, "--save-every", "3", "--resume"});
      all.insert(all.end(), method.begin(), method.end());
      return all;
    };
    const Finished whole = run_tutti(words(folder_.path() / ("whole" + project.filename().string()), "150"));
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    {
      TuttiProcess process(words(project, "150"));
      process.wait_for_line("step 50");
      const auto ranks = ranks_of(process.pid());
      ASSERT_EQ(ranks.size(), 2U);
      ::kill(ranks[1], SIGKILL);
      EXPECT_NE(process.wait().exit_code, 0);
    }
    const Finished resumed = run_tutti(words(project, "150"));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_NE(digest_in(whole.out), "");
    EXPECT_EQ(digest_in(resumed.out), digest_in(whole.out));
  }
}

}  // namespace
}  // namespace tutti::test::trainer_program_test
