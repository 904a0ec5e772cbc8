// Restarts of all ranks. The ranks are shell scripts that read the attempt's number from TORCHELASTIC_RESTART_COUNT.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>

#include "launch/tutti_process.h"

namespace tutti::test::restart_test {
namespace {

const std::vector<std::string> two_restarts{"--max-restarts", "2", "--grace", "0.1"};
const std::string attempt = "$TORCHELASTIC_RESTART_COUNT";

TEST(Restart, StartsAllRanksAgainUntilTheySucceed) {
  const auto done = run_tutti(launch_script(
      2, "echo attempt " + attempt + "/$TORCHELASTIC_MAX_RESTARTS; [ " + attempt + " = 2 ] || exit $((RANK * 4))",
      two_restarts));
  EXPECT_EQ(done.exit_code, 0) << done.err;
  for (const std::string rank : {"0", "1"}) {
    for (const std::string count : {"0", "1", "2"}) {
      EXPECT_EQ(lines_with(done.out, "[rank " + rank + "] attempt " + count + "/2"), 1) << done.out;
    }
  }
  // Rank 0 exits with code 0, before or after rank 1.
  for (const std::string restart : {"1", "2"}) {
    EXPECT_EQ(lines_with(done.err, " (exit code 4): all ranks start again, restart " + restart + " of 2"), 1)
        << done.err;
  }
}

TEST(Restart, NamesTheRankThatExitedBeforeTheFailure) {
  TemporaryFolder folder;
  const auto fifo = folder.path() / "guard_of_rank_1";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const auto script = "[ " + attempt + " = 1 ] && exit 0; if [ $RANK = 1 ]; then echo $PPID >" + fifo.string() +
                      "; exit 0; fi; read guard <" + fifo.string() +
                      "; until grep -q State:.Z /proc/$guard/status; do sleep 0.01; done; exit 7";
  const auto done = run_tutti(launch_script(2, script, {"--max-restarts", "1", "--grace", "600"}));
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_EQ(done.err,
            "tutti: rank 1 ended first, with exit code 0, while others still ran\n"
            "tutti: rank 0 failed after that (exit code 7): all ranks start again, restart 1 of 1\n");
}

TEST(Restart, EndsWithTheLastAttemptsExitCode) {
  const auto done = run_tutti(launch_script(1, "echo line; exit $((" + attempt + " + 3))", two_restarts));
  EXPECT_EQ(done.exit_code, 5);
  EXPECT_EQ(lines_with(done.out, "line"), 3) << done.out;
  EXPECT_TRUE(contains(done.err, "rank 0 failed first (exit code 4): all ranks start again, restart 2 of 2\n"));
  EXPECT_TRUE(contains(done.err, "tutti: rank 0 failed first: exit code 5\n")) << done.err;
}

TEST(Restart, RestartsAfterASignalThatEndedARank) {
  const auto done = run_tutti(launch_script(1, "[ " + attempt + " = 1 ] || kill -SEGV $$", two_restarts));
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_TRUE(contains(done.err, "rank 0 failed first (signal 11 (Segmentation fault)): all ranks start again"))
      << done.err;
}

TEST(Restart, EndsRanksThatDoNotDetectTheFailureBeforeTheNextAttempt) {
  TuttiProcess process(launch_script(
      2, "if [ " + attempt + " = 1 ]; then exit 0; fi; [ $RANK = 1 ] && exit 3; echo pid $$; trap '' TERM; sleep 1000",
      two_restarts));
  const auto pid = static_cast<pid_t>(std::stol(process.wait_for_line("pid ")));
  EXPECT_EQ(process.wait().exit_code, 0);
  EXPECT_TRUE(exits_soon(pid));
}

TEST(Restart, RunsACoordinatorForEachAttempt) {
  const auto script =
      "echo at ${TUTTI_MASTER_PORT:-none} port $MASTER_PORT id $TORCHELASTIC_RUN_ID; [ " + attempt + " = 1 ]";
  const auto done = run_tutti(launch_script(1, script, two_restarts));
  EXPECT_EQ(done.exit_code, 0) << done.out << done.err;
  EXPECT_EQ(lines_with(done.out, "[rank 0] at "), 2) << done.out;
  EXPECT_EQ(lines_with(done.out, "at none"), 0) << done.out;
  const auto id = done.out.substr(done.out.find("id "), done.out.find('\n') - done.out.find("id "));
  EXPECT_EQ(lines_with(done.out, id), 2) << done.out;
}

TEST(Restart, WaitsForAChosenPortThatALeftoverProcessHolds) {
  // A process in another session keeps the port briefly after its rank has exited, as a process that serves a store
  // may.
  const auto script = "echo port $MASTER_PORT; [ " + attempt + R"( = 1 ] && exit 0; python3 -c "
import os, socket, time
server = socket.create_server(('', int(os.environ['MASTER_PORT'])))
if os.fork() == 0:
    os.setsid()
    os.close(1)
    os.close(2)
    time.sleep(0.3)
"; exit 1)";
  const auto [port, done] = run_with_a_free_port([&](const std::string& free) {
    auto options = two_restarts;
    options.insert(options.end(), {"--master-port", free});
    return launch_script(1, script, options);
  });
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(lines_with(done.out, "port " + port), 2) << done.out;
}

TEST(Restart, DoesNotRestartAfterAnInterruption) {
  for (const int signal : {SIGINT, SIGTERM}) {
    TuttiProcess process(
        launch_script(1, "trap 'exit 5' INT TERM; echo ready; sleep 1000 >/dev/null 2>&1 & wait", two_restarts));
    process.wait_for_line("ready");
    process.send(signal);
    const auto done = process.wait();
    EXPECT_EQ(done.exit_code, 5);
    EXPECT_EQ(lines_with(done.out, "ready"), 1) << done.out;
    EXPECT_FALSE(contains(done.err, "start again")) << done.err;
  }
}

TEST(Restart, DoesNotRestartAfterAFailureAndAnInterruption) {
  TemporaryFolder folder;
  const auto guard = folder.path() / "guard_of_rank_1";
  const auto seen = folder.path() / "seen";
  for (const auto& fifo : {guard, seen}) ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  // Rank 0 prints when rank 1 has exited, and again when the launcher has forwarded that line. By then the launcher
  // knows of the failure.
  const auto script = "if [ $RANK = 1 ]; then echo $PPID >" + guard.string() + "; exit 3; fi; " +
                      "trap 'echo told; exit 0' INT; read guard <" + guard.string() +
                      "; until grep -q State:.Z /proc/$guard/status; do sleep 0.01; done; echo first; read ok <" +
                      seen.string() + "; echo second; sleep 1000 >/dev/null 2>&1 & wait";
  TuttiProcess process(launch_script(2, script, {"--max-restarts", "2", "--grace", "600"}));
  process.wait_for_line("first");
  std::ofstream(seen) << "seen\n";
  process.wait_for_line("second");
  process.send(SIGINT);
  const auto done = process.wait();
  EXPECT_EQ(done.exit_code, 3);
  EXPECT_EQ(lines_with(done.out, "told"), 1) << done.out;
  EXPECT_FALSE(contains(done.err, "start again")) << done.err;
  EXPECT_TRUE(contains(done.err, "rank 1 failed first: exit code 3")) << done.err;
}

TEST(Restart, DoesNotRestartAProgramThatCannotBeRun) {
  for (const std::string code : {"126", "127"}) {
    const auto done = run_tutti(launch_script(1, "echo once; exit " + code, two_restarts));
    EXPECT_EQ(std::to_string(done.exit_code), code);
    EXPECT_EQ(lines_with(done.out, "once"), 1) << done.out;
  }
}

TEST(Restart, AppendsToTheLogFilesAndMarksTheAttempt) {
  TemporaryFolder folder;
  auto options = two_restarts;
  options.insert(options.end(), {"--log-dir", folder.path().string()});
  const auto done = run_tutti(launch_script(1, "printf \"attempt " + attempt + "\"; [ " + attempt + " = 2 ]", options));
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_EQ(content_of(folder.path() / "rank_0.log"),
            "attempt 0\ntutti: restart 1 of 2 begins here\nattempt 1\ntutti: restart 2 of 2 begins here\nattempt 2");
}

}  // namespace
}  // namespace tutti::test::restart_test
