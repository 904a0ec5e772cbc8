// Signals to the launcher, which it forwards to the ranks.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "launch/tutti_process.h"
#include "tutti/launch/launch.h"

namespace tutti::test::launch_signals_test {
namespace {

TEST(LaunchSignals, ContinuesAStoppedRankOnSigterm) {
  TuttiProcess process(launch_script(1, "trap 'exit 5' TERM; echo pid $$; kill -STOP $$; " + wait_forever, long_grace));
  const auto status = "/proc/" + process.wait_for_line("pid ") + "/status";
  const auto is_stopped = [&] {
    std::ifstream file(status);
    for (std::string word; file >> word;) {
      if (word == "State:") return file >> word && word == "T";
    }
    return true;  // it has ended, as the rest will tell
  };
  while (!is_stopped()) std::this_thread::yield();
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().exit_code, 5);
}

TEST(LaunchSignals, ForwardsInterruptionsAtOnce) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    const auto before = ::signal(signal, SIG_DFL);
    TuttiProcess process(launch_script(
        2, "trap 'echo got INT; exit 0' INT; trap 'echo got TERM; exit 0' TERM; echo ready$RANK; " + wait_forever,
        long_grace));
    ::signal(signal, before);
    process.wait_for_line("ready0");
    process.wait_for_line("ready1");
    process.send(signal);
    const auto done = process.wait();
    EXPECT_EQ(done.exit_code, 0);
    EXPECT_EQ(lines_with(done.out, signal == SIGINT ? "got INT" : "got TERM"), 2) << done.out;
    EXPECT_TRUE(contains(done.err, std::string("stopped by SIG") + ::sigabbrev_np(signal) + ";")) << done.err;
  }
}

// As under nohup.
TEST(LaunchSignals, IgnoresAHangupIfItWasStartedSo) {
  const auto before = ::signal(SIGHUP, SIG_IGN);
  TuttiProcess process(launch_script(1, "trap 'exit 5' TERM; echo ready; " + wait_forever, long_grace));
  ::signal(SIGHUP, before);
  process.wait_for_line("ready");
  process.send(SIGHUP);
  process.send(SIGTERM);
  const auto done = process.wait();
  EXPECT_EQ(done.exit_code, 5);
  EXPECT_TRUE(contains(done.err, "stopped by SIGTERM;")) << done.err;
}

TEST(LaunchSignals, ForwardsCtrlCEvenIfItWasStartedWithCtrlCIgnored) {
  ::signal(SIGINT, SIG_IGN);  // as a script does for what it starts with &
  // A shell cannot trap a signal that it inherits as ignored.
  TuttiProcess process(launch_script(1, "trap 'exit 5' INT; echo ready; " + wait_forever, long_grace));
  ::signal(SIGINT, SIG_DFL);
  process.wait_for_line("ready");
  process.send(SIGINT);
  EXPECT_EQ(process.wait().exit_code, 5);
}

TEST(LaunchSignals, KillsAfterTheGraceTimeOfAnInterruption) {
  TuttiProcess process(launch_script(1, "trap '' TERM; echo ready; sleep 1000", short_grace));
  process.wait_for_line("ready");
  process.send(SIGTERM);
  const auto done = process.wait();
  EXPECT_EQ(done.exit_code, 128 + SIGKILL);
  EXPECT_TRUE(contains(done.err, "stopped by SIGTERM; rank 0 did not end and had to be killed: --grace sets"))
      << done.err;
}

// As `timeout` does.
std::vector<std::string> launch_in_another_group(const std::string& script, const std::vector<std::string>& options) {
  auto words = launch_script(1, script, options);
  words.insert(std::ranges::find(words, "--") + 1, "setsid");
  return words;
}

TEST(LaunchSignals, ReachAProgramThatLeadsAnotherGroup) {
  TuttiProcess process(
      launch_in_another_group("trap 'exit 5' TERM; echo ready; while true; do sleep 0.1; done", long_grace));
  process.wait_for_line("ready");
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().exit_code, 5);
}

TEST(LaunchSignals, KillsAllOfAProgramThatLeadsAnotherGroup) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    TuttiProcess process(launch_in_another_group(
        "trap '' TERM; sleep 1000 >/dev/null 2>&1 & echo pid $!; while true; do sleep 0.1; done", short_grace));
    const auto pid = to_pid(process.wait_for_line("pid "));
    process.send(signal);
    EXPECT_EQ(process.wait().exit_code, 128 + SIGKILL);
    EXPECT_TRUE(exits_soon(pid)) << signal;
  }
}

// The shell of the script exits at once, and the launcher kills what it leaves behind.
TEST(LaunchSignals, GiveTheProgramOfAScriptTheGraceTime) {
  const std::string program = "trap 'sleep 1.5; echo saved; exit' TERM; echo ready; while true; do sleep 0.1; done";
  TuttiProcess process(launch_script(1, "/bin/sh -c \"" + program + "\"; true", long_grace));
  process.wait_for_line("ready");
  process.send(SIGTERM);
  const auto done = process.wait();
  EXPECT_EQ(done.exit_code, 128 + SIGTERM);
  EXPECT_TRUE(contains(done.out, "saved")) << done.out;
}

// Here no signal of the launcher has ended the rank: its other processes do not keep it.
TEST(LaunchSignals, AKilledProgramEndsItsRankAtOnce) {
  TuttiProcess process(launch_script(1, "echo pid $$; " + wait_forever, long_grace));
  ::kill(to_pid(process.wait_for_line("pid ")), SIGTERM);
  EXPECT_EQ(process.wait().exit_code, 128 + SIGTERM);
}

// A signal that waits for the launcher when it begins to start ranks.
TEST(LaunchSignals, StartsNoMoreRanksAfterASignal) {
  const CommandsInPath in_path;
  const TemporaryFolder folder;
  sigset_t term;
  sigset_t before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &term, &before);
  ::raise(SIGTERM);
  EXPECT_EQ(launch({.ranks_per_node = 3, .command = {"touch", (folder.path() / "started").string()}}), 128 + SIGTERM);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "started"));
}

TEST(LaunchSignals, KillsAtOnceOnTheSecondCtrlC) {
  TuttiProcess process(launch_script(
      1, "trap 'echo once' INT; echo ready; while true; do sleep 1000 >/dev/null 2>&1 & wait; done", long_grace));
  process.wait_for_line("ready");
  process.send(SIGINT);
  process.wait_for_line("once");
  process.send(SIGINT);
  EXPECT_EQ(process.wait().exit_code, 128 + SIGKILL);
}

TEST(LaunchSignals, HandlesCtrlCWhileItsOutputIsNotRead) {
  TuttiProcess process(launch_script(1, "trap 'exit 5' INT; echo pid $$; while true; do echo much; done", long_grace));
  const auto pid = to_pid(process.wait_for_line("pid "));
  process.send(SIGINT);
  EXPECT_TRUE(exits_soon(pid));
  EXPECT_EQ(process.wait().exit_code, 5);
}

}  // namespace
}  // namespace tutti::test::launch_signals_test
