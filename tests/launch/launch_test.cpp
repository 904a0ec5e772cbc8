// Launches real processes; the ranks are shell scripts.
#include "tutti/launch/launch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "launch/tutti_process.h"
#include "tutti/core/error.h"

namespace tutti::test::launch_test {
namespace {

TEST(Launch, GivesEachRankTorchrunsVariables) {
  const auto done = run_tutti(
      launch_script(2,
                    "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK "
                    "$ROLE_NAME $ROLE_WORLD_SIZE $MASTER_ADDR; echo port $MASTER_PORT id $TORCHELASTIC_RUN_ID"));
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(done.err, "");
  EXPECT_TRUE(contains(done.out, "[rank 0] 0 2 0 2 0 1 0 default 2 127.0.0.1\n")) << done.out;
  EXPECT_TRUE(contains(done.out, "[rank 1] 1 2 1 2 0 1 1 default 2 127.0.0.1\n")) << done.out;
  const auto port = done.out.find("port ");
  const auto shared = done.out.substr(port, done.out.find('\n', port) - port);
  EXPECT_EQ(lines_with(done.out, shared), 2) << done.out;
}

TEST(Launch, KeepsTheUsersThreadCount) {
  TuttiProcess process(launch_script(1, "echo threads $OMP_NUM_THREADS"), {.variables = {"OMP_NUM_THREADS=7"}});
  EXPECT_EQ(process.wait().out, "[rank 0] threads 7\n");
}

TEST(Launch, PrefixesLinesOfBothStreams) {
  const auto done = run_tutti(launch_script(1, "echo one; echo two >&2; printf 'no end'"));
  EXPECT_EQ(done.out, "[rank 0] one\n[rank 0] no end\n");
  EXPECT_EQ(done.err, "[rank 0] two\n");
}

TEST(Launch, WaitsForOtherRanksToReportAFailure) {
  TemporaryFolder folder;
  const auto fifo = folder.path() / "guard_of_rank_1";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  // Rank 0 detects that rank 1 has exited, and exits by itself, without SIGTERM.
  const auto script = "if [ $RANK = 1 ]; then echo $PPID >" + fifo.string() + "; echo last words; exit 3; fi; " +
                      "trap 'echo terminated' TERM; read guard <" + fifo.string() +
                      "; until grep -q State:.Z /proc/$guard/status; do sleep 0.01; done; echo noticed; exit 7";
  const auto done = run_tutti(launch_script(2, script, long_grace));
  EXPECT_EQ(done.exit_code, 3);
  EXPECT_TRUE(contains(done.out, "[rank 0] noticed\n")) << done.out;
  EXPECT_FALSE(contains(done.out, "terminated")) << done.out;
  EXPECT_TRUE(contains(done.err, "rank 1 failed first: exit code 3")) << done.err;
  EXPECT_TRUE(contains(done.err, "    last words\n")) << done.err;
  EXPECT_TRUE(contains(done.err, "tutti: failed after it: rank 0 (exit code 7)\n")) << done.err;
}

/// Two ranks. Rank 1 runs `fails` and exits with code 7. Then rank 0 runs `rest`.
Finished run_rank_0_last(const std::string& fails, const std::string& rest) {
  const TemporaryFolder folder;
  const auto fifo = folder.path() / "guard_of_rank_1";
  EXPECT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  return run_tutti(launch_script(2,
                                 "if [ $RANK = 1 ]; then echo $PPID >" + fifo.string() + "; " + fails +
                                     "; exit 7; fi; read guard <" + fifo.string() +
                                     "; until grep -q State:.Z /proc/$guard/status; do sleep 0.01; done; " + rest,
                                 long_grace));
}

TEST(Launch, NamesTheRankThatOthersNameThoughItExitsLater) {
  const auto done = run_rank_0_last("echo 'barrier (operation 3): rank 0 disconnected (connection closed)'",
                                    "echo the reason; exit 2");
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_TRUE(contains(done.err, "tutti: rank 0 failed first: exit code 2\n")) << done.err;
  EXPECT_TRUE(contains(done.err, "    the reason\n")) << done.err;
  EXPECT_TRUE(contains(done.err, "tutti: failed after it: rank 1 (exit code 7)\n")) << done.err;
}

TEST(Launch, SaysThatAnErrorNamesARankOfAnotherNode) {
  const auto script = "echo 'barrier (operation 3): rank 0 exited; rank 1 was waiting'; exit 7";
  const auto second_node = run_tutti(launch_script(
      1, script, {"--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port", "29500"}));
  EXPECT_TRUE(contains(second_node.err,
                       "tutti: rank 1 failed: exit code 7; its error names rank 0, which is on another node\n"))
      << second_node.err;
  const auto only_node = run_tutti(launch_script(1, "echo 'barrier (operation 3): rank 5 exited'; exit 7"));
  EXPECT_TRUE(contains(only_node.err, "tutti: rank 0 failed first: exit code 7\n")) << only_node.err;
}

TEST(Launch, NamesARankThatOthersNameAndThatExitsWithCode0Later) {
  const auto done = run_rank_0_last("echo 'barrier (operation 3): rank 0 exited; rank 1 was waiting'", "exit 0");
  EXPECT_EQ(done.exit_code, 7);
  EXPECT_TRUE(contains(done.err, "tutti: rank 0 ended first, with exit code 0, while others still ran\n")) << done.err;
  EXPECT_TRUE(contains(done.err, "tutti: rank 1 failed after that: exit code 7\n")) << done.err;
}

TEST(Launch, NamesAStoppedRankThatOthersName) {
  const TemporaryFolder folder;
  const auto fifo = folder.path() / "rank_0";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const auto script = "if [ $RANK = 0 ]; then echo $$ >" + fifo.string() + "; kill -STOP $$; exit 3; fi; read other <" +
                      fifo.string() + "; until grep -q State:.T /proc/$other/status; do sleep 0.01; done; " +
                      "echo 'barrier (operation 3): rank 0 has been stopped for 2 s (SIGSTOP or Ctrl+Z)'; exit 7";
  const auto done = run_tutti(launch_script(2, script, long_grace));
  EXPECT_EQ(done.exit_code, 3);
  EXPECT_TRUE(contains(done.err, "tutti: rank 0 failed first: it was stopped (SIGSTOP or Ctrl+Z), then exit code 3\n"))
      << done.err;
  EXPECT_TRUE(contains(done.err, "tutti: failed after it: rank 1 (exit code 7)\n")) << done.err;
}

TEST(Launch, LeavesBacktracesOutOfTheLastLines) {
  const auto done = run_tutti(
      launch_script(1,
                    "echo the message; for i in $(seq 0 30); do echo \"frame #$i: f() + 0x1 (0x2 in lib.so)\"; done; "
                    "exit 1"));
  EXPECT_TRUE(contains(done.out, "[rank 0] frame #30: f()")) << done.out;
  EXPECT_TRUE(contains(done.err, "tutti: its last lines:\n    the message\n")) << done.err;
  EXPECT_FALSE(contains(done.err, "frame #")) << done.err;
}

TEST(Launch, FoldsLinesThatSeveralRanksPrinted) {
  const auto done =
      run_tutti(launch_script(4, "echo bad option; [ $RANK = 3 ] || exit 2; echo one more; exit 2", long_grace));
  EXPECT_EQ(lines_with(done.err, "    [ranks 0, 1, 2, 3] bad option"), 1) << done.err;
  EXPECT_EQ(lines_with(done.err, "(exit code 2)"), 1) << done.err;
}

TEST(Launch, ContinuesAStoppedRankAfterAFailure) {
  TemporaryFolder folder;
  const auto fifo = folder.path() / "rank_1";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const auto script = "if [ $RANK = 1 ]; then echo $$ >" + fifo.string() + "; kill -STOP $$; echo woken; exit 3; fi; " +
                      "read other <" + fifo.string() +
                      "; until grep -q State:.T /proc/$other/status; do sleep 0.01; done; exit 7";
  const auto done = run_tutti(launch_script(2, script, long_grace));
  EXPECT_EQ(done.exit_code, 7);
  EXPECT_TRUE(contains(done.out, "[rank 1] woken\n")) << done.out;
  EXPECT_TRUE(contains(done.err, "tutti: failed after it: rank 1 (exit code 3)\n")) << done.err;
}

TEST(Launch, NamesTheRankThatExitedBeforeTheFailure) {
  TemporaryFolder folder;
  const auto fifo = folder.path() / "guard_of_rank_1";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  // Rank 1 calls exit(0) in the middle of the job. Rank 0 detects that and fails.
  const auto script = "if [ $RANK = 1 ]; then echo $PPID >" + fifo.string() + "; exit 0; fi; read guard <" +
                      fifo.string() +
                      "; until grep -q State:.Z /proc/$guard/status; do sleep 0.01; done; echo lost rank 1; exit 7";
  const auto done = run_tutti(launch_script(2, script, long_grace));
  EXPECT_EQ(done.exit_code, 7);
  EXPECT_TRUE(contains(done.err, "tutti: rank 1 ended first, with exit code 0, while others still ran\n")) << done.err;
  EXPECT_TRUE(contains(done.err, "tutti: rank 0 failed after that: exit code 7\n")) << done.err;
  EXPECT_FALSE(contains(done.err, "failed first")) << done.err;
  EXPECT_TRUE(contains(done.err, "    lost rank 1\n")) << done.err;
}

TEST(Launch, NamesTheRankThatFailedFirstIfSeveralHaveFailed) {
  TemporaryFolder folder;
  const auto fifo = [&](int rank) { return folder.path() / ("end_" + std::to_string(rank)); };
  for (const int rank : {0, 1, 2}) ASSERT_EQ(::mkfifo(fifo(rank).c_str(), 0600), 0);
  TuttiProcess process(launch_script(
      3, "echo guard$RANK $PPID; read end <" + (folder.path() / "end_$RANK").string() + "; exit $((RANK + 3))",
      long_grace));
  std::vector<pid_t> guards;
  for (const auto* name : {"guard0 ", "guard1 ", "guard2 "}) guards.push_back(to_pid(process.wait_for_line(name)));
  process.send(SIGSTOP);
  for (const int rank : {1, 2, 0}) {
    std::ofstream(fifo(rank)) << "now\n";
    EXPECT_TRUE(exits_soon(guards[rank]));
  }
  process.send(SIGCONT);
  EXPECT_EQ(process.wait().exit_code, 4);
}

TEST(Launch, ShowsTheLastLinesOfTheFailedRankOnly) {
  const auto script = "if [ $RANK = 0 ]; then exit 0; fi; for i in $(seq 1 25); do echo line $i; done; exit 1";
  const auto done = run_tutti(launch_script(2, script));
  EXPECT_EQ(done.exit_code, 1);
  EXPECT_FALSE(contains(done.err, "    line 5\n")) << done.err;
  EXPECT_EQ(lines_with(done.err, "    line "), 20) << done.err;
  EXPECT_TRUE(contains(done.err, "    line 6\n")) << done.err;
}

TEST(Launch, ReportsSignals) {
  const auto done = run_tutti(launch_script(1, "kill -KILL $$"));
  EXPECT_EQ(done.exit_code, 128 + SIGKILL);
  EXPECT_TRUE(contains(done.err, "rank 0 failed first: signal 9 (Killed)")) << done.err;
  EXPECT_EQ(run_tutti(launch_script(1, "kill -SEGV $$")).exit_code, 128 + SIGSEGV);
  EXPECT_TRUE(contains(run_tutti(launch_script(1, "kill -40 $$")).err, "rank 0 failed first: signal 40\n"));
}

TEST(Launch, LetsARankExitBeforeTheOthers) {
  TemporaryFolder folder;
  const auto fifo = folder.path() / "rank_0_lives";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const auto script =
      "if [ $RANK = 0 ]; then exec 3>" + fifo.string() + "; exit 0; fi; cat " + fifo.string() + "; echo still here";
  const auto done = run_tutti(launch_script(2, script, short_grace));
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_EQ(done.out, "[rank 1] still here\n");
}

TEST(Launch, TerminatesRanksThatDoNotDetectAFailure) {
  TemporaryFolder folder;
  const auto fifo = folder.path() / "rank_0_ready";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const auto script = "if [ $RANK = 1 ]; then read ready <" + fifo.string() + "; exit 3; fi; " +
                      "trap 'echo terminated; exit 0' TERM; echo ready >" + fifo.string() + "; " + wait_forever;
  const auto done = run_tutti(launch_script(2, script, short_grace));
  EXPECT_EQ(done.exit_code, 3);
  EXPECT_TRUE(contains(done.out, "[rank 0] terminated\n")) << done.out;
}

TEST(Launch, KillsRanksThatIgnoreSigterm) {
  TemporaryFolder folder;
  const auto fifo = folder.path() / "rank_0_ready";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const auto script = "if [ $RANK = 1 ]; then read ready <" + fifo.string() + "; exit 3; fi; " +
                      "trap '' TERM; echo pid $$; echo ready >" + fifo.string() + "; sleep 1000";
  TuttiProcess process(launch_script(2, script, short_grace));
  const auto pid = to_pid(process.wait_for_line("pid "));
  EXPECT_EQ(process.wait().exit_code, 3);
  EXPECT_TRUE(exits_soon(pid));
}

TEST(Launch, LeavesNoGrandchildren) {
  TuttiProcess process(launch_script(1, "sleep 1000 >/dev/null 2>&1 & echo pid $!"));
  const auto pid = to_pid(process.wait_for_line("pid "));
  EXPECT_EQ(process.wait().exit_code, 0);
  EXPECT_TRUE(exits_soon(pid));
}

TEST(Launch, DoesNotWaitForGrandchildrenThatHoldTheOutput) {
  TuttiProcess process(launch_script(1, "sleep 1000 & echo pid $!; exit 4"));
  const auto pid = to_pid(process.wait_for_line("pid "));
  EXPECT_EQ(process.wait().exit_code, 4);
  EXPECT_TRUE(exits_soon(pid));
}

TEST(Launch, ShowsWhatAPipelineWritesAfterItsRank) {
  const auto done = run_tutti(launch_script(1, "(cat >/dev/null; echo late) & exit 0"));
  EXPECT_EQ(done.out, "[rank 0] late\n");
}

TEST(Launch, EndsRanksAndGrandchildrenWhenItIsKilled) {
  TuttiProcess process(launch_script(2, "sleep 1000 & echo rank$RANK $$; echo child$RANK $!; wait"));
  std::vector<pid_t> pids;
  for (const auto* name : {"rank0 ", "rank1 ", "child0 ", "child1 "}) {
    pids.push_back(to_pid(process.wait_for_line(name)));
  }
  process.send(SIGKILL);
  EXPECT_EQ(process.wait().exit_code, 128 + SIGKILL);
  for (const auto pid : pids) EXPECT_TRUE(exits_soon(pid));
}

TEST(Launch, PassesNoSocketToTheRanks) {
  const auto script =
      "for fd in /proc/self/fd/*; do case $(readlink $fd) in socket:*) echo socket ${fd##*/};; esac; done; echo done";
  const auto done = run_tutti(launch_script(2, script));
  EXPECT_EQ(lines_with(done.out, "done"), 2) << done.out;
  EXPECT_EQ(lines_with(done.out, "socket"), 0) << done.out;
}

TEST(Launch, GivesTheRanksOfOneNodeASecret) {
  const auto done = run_tutti(launch_script(2, "echo length ${#TUTTI_JOB_SECRET} at $TUTTI_MASTER_PORT"));
  EXPECT_EQ(lines_with(done.out, "length 64 at "), 2) << done.out;
  TuttiProcess with_secret(launch_script(2, "echo $TUTTI_JOB_SECRET"),
                           {.variables = {"TUTTI_JOB_SECRET=that of the user"}});
  EXPECT_EQ(lines_with(with_secret.wait().out, "that of the user"), 2);
}

TEST(Launch, KeepsNoneOfARanksDescriptorsOpen) {
  // The parent of a rank is its guard. It closes its descriptors while the rank runs already.
  const auto done = run_tutti(launch_script(1, "until [ $(ls /proc/$PPID/fd | wc -l) = 3 ]; do sleep 0.01; done"));
  EXPECT_EQ(done.exit_code, 0);
}

TEST(Launch, WritesLogFiles) {
  TemporaryFolder folder;
  const auto logs = folder.path() / "new" / "logs";
  const auto done = run_tutti(
      launch_script(2, "echo out$RANK; if [ $RANK = 1 ]; then echo err >&2; exit 2; fi", {"--log-dir", logs.string()}));
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_EQ(content_of(logs / "rank_0.log"), "out0\n");
  EXPECT_EQ(lines_with(content_of(logs / "rank_1.log"), "err"), 1);
  EXPECT_EQ(lines_with(content_of(logs / "rank_1.log"), "out1"), 1);
  EXPECT_TRUE(contains(done.err, (logs / "rank_1.log").string())) << done.err;
}

TEST(Launch, NamesTheReasonIfAProgramCannotRun) {
  TemporaryFolder folder;
  const auto program = folder.path() / "broken";
  std::filesystem::copy_file("/bin/sh", program);
  std::filesystem::resize_file(program, 3);
  const auto done = run_tutti({"launch", "-n", "1", "--", program.string()});
  EXPECT_EQ(done.exit_code, 126);
  EXPECT_TRUE(contains(done.err, "cannot run " + program.string() + ": Exec format error")) << done.err;
}

TEST(Launch, IsAlsoAFunction) {
  const CommandsInPath in_path;
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  EXPECT_EQ(launch({.ranks_per_node = 2, .command = {"sh", "-c", "exit 6"}}), 6);
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&before, SIGINT), sigismember(&after, SIGINT));
}

TEST(Launch, RefusesInvalidOptions) {
  const std::vector<std::string> command{"true"};
  EXPECT_THROW(launch({}), UsageError);
  EXPECT_THROW(launch({.ranks_per_node = 0, .command = command}), UsageError);
  EXPECT_THROW(launch({.ranks_per_node = max_ranks_per_node + 1, .command = command}), UsageError);
  EXPECT_THROW(launch({.ranks_per_node = 2, .num_nodes = 1 << 20, .master_port = 1, .command = command}), UsageError);
  EXPECT_THROW(launch({.grace = std::chrono::milliseconds::max(), .command = command}), UsageError);
  EXPECT_THROW(launch({.num_nodes = 0, .command = command}), UsageError);
  EXPECT_THROW(launch({.node_rank = 1, .command = command}), UsageError);
  EXPECT_THROW(launch({.num_nodes = 2, .command = command}), UsageError);
  EXPECT_THROW(launch({.grace = std::chrono::milliseconds(-1), .command = command}), UsageError);
  EXPECT_THROW(launch({.max_restarts = -1, .command = command}), UsageError);
  EXPECT_THROW(launch({.command = {"./there-is-no-such-program"}}), UsageError);
}

}  // namespace
}  // namespace tutti::test::launch_test
