// One job on several hosts. A script replaces ssh and runs each "host" on this machine.
#include "tutti/detail/launch/launch_hosts.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <set>

#include "coordinator/told.h"
#include "launch/master_socket.h"
#include "launch/remote_script.h"
#include "launch/tutti_process.h"
#include "tutti/core/error.h"

namespace tutti::test::launch_hosts_test {
namespace {

using Words = std::vector<std::string>;

TEST(RemoteScript, QuotesForTheShell) {
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("it's $HOME `x` \"y\"\n"), "'it'\\''s $HOME `x` \"y\"\n'");
}

TEST(RemoteScript, PassesVariablesExceptThoseOfALogin) {
  LaunchOptions job{
      .ranks_per_node = 2, .num_nodes = 3, .master_addr = "a", .master_port = 77, .command = {"./p", "x y"}};
  const auto script = remote_script(job, 1, "/bin/tutti", "/some where",
                                    {{"HOME", "/root"}, {"SSH_TTY", "x"}, {"BASH_FUNC_f%%", "x"}, {"DATA", "a'b"}});
  EXPECT_EQ(script,
            "cd '/some where' || exit 1\nexport DATA='a'\\''b'\n"
            "exec '/bin/tutti' launch --nnodes 3 --node-rank 1 -n 2 --master-addr 'a' --end-with-stdin "
            "--master-port 77 -- './p' 'x y'\n");
  job.grace = std::chrono::milliseconds(1500);
  EXPECT_TRUE(contains(remote_script(job, 1, "t", "/", {}), " --grace 1.5 "));
  job.coordinator_port = 88;
  EXPECT_TRUE(contains(remote_script(job, 1, "t", "/", {}), " --master-port 77 --coordinator-port 88 --"));
  job.max_restarts = 2;
  job.restart_count = 1;
  EXPECT_TRUE(contains(remote_script(job, 1, "t", "/", {}), " --max-restarts 2 --restart-count 1 --"));
  job.master_port = std::nullopt;
  EXPECT_TRUE(contains(remote_script(job, 0, "t", "/", {}), " --announce-port "));
}

// A shell ends where a script assigns a variable of its own: some are readonly, some take only numbers.
TEST(RemoteScript, LeavesOutTheVariablesOfAShell) {
  const LaunchOptions job{.master_addr = "a", .master_port = 77, .command = {"./p"}};
  const auto script = remote_script(job, 0, "t", "/",
                                    {{"BASHOPTS", "x"},
                                     {"BASH_VERSINFO", "x"},
                                     {"EUID", "1"},
                                     {"OPTIND", "x"},
                                     {"PPID", "1"},
                                     {"SHELLOPTS", "x"},
                                     {"UID", "1"},
                                     {"ZONE", "kept"}});
  EXPECT_EQ(lines_with(script, "export "), 1) << script;
  EXPECT_TRUE(contains(script, "export ZONE='kept'\n")) << script;
}

TEST(RemoteScript, PortAnnouncement) {
  const auto line = port_announcement({.master = 4321, .coordinator = 1234});
  const auto ports = announced_ports(line.substr(0, line.size() - 1));
  ASSERT_TRUE(ports);
  EXPECT_EQ(ports->master, 4321);
  EXPECT_EQ(ports->coordinator, 1234);
  const std::string start = "tutti: the coordinator listens on port ";
  for (const std::string& other :
       {std::string(), std::string("4321"), start, start + "1", start + "1x, MASTER_PORT is 2",
        start + "1, MASTER_PORT is 2x", start + "1, MASTER_PORT is 0"}) {
    EXPECT_FALSE(announced_ports(other)) << other;
  }
}

/// Two hosts, alpha and beta, on this machine.
class LaunchHosts : public testing::Test {
 protected:
  LaunchHosts() { write_ssh("exec \"$@\""); }

  /// In `script`, `$host` is the host and "$@" the command to run.
  void write_ssh(const std::string& script) const {
    std::ofstream(ssh()) << "#!/bin/sh\n[ \"$1\" = -o ] || exit 99\nhost=$3\nshift 3\n" << script << '\n';
    std::filesystem::permissions(ssh(), std::filesystem::perms::owner_all);
    std::ofstream(hostfile()) << "alpha slots=2\nbeta slots=2\n";
  }
  std::filesystem::path ssh() const { return folder_.path() / "ssh"; }
  std::filesystem::path hostfile() const { return folder_.path() / "hosts"; }
  Words launch_script(const std::string& script, const Words& options = {}) const {
    Words words{"launch",        "--hostfile", hostfile(), "--ssh", ssh().string() + " -o BatchMode=yes",
                "--master-addr", "127.0.0.1"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", "/bin/sh", "-c", script});
    return words;
  }

  TemporaryFolder folder_;
};

TEST_F(LaunchHosts, StartsRanksOnEachHost) {
  const TuttiProcess::Options here{.working_directory = folder_.path(), .variables = {"DATA=some 'data'"}};
  const auto done =
      TuttiProcess(
          launch_script("echo $RANK/$WORLD_SIZE node $GROUP_RANK at $MASTER_ADDR:$MASTER_PORT in $(pwd) $DATA; "
                        "echo ports $TUTTI_MASTER_PORT"),
          here)
          .wait();
  EXPECT_EQ(done.exit_code, 0) << done.err;
  const auto port_begin = done.out.find("127.0.0.1:") + 10;
  const auto port = done.out.substr(port_begin, done.out.find(' ', port_begin) - port_begin);
  EXPECT_GT(std::stoi(port), 0);
  const auto rest = " at 127.0.0.1:" + port + " in " + folder_.path().string() + " some 'data'\n";
  for (const int rank : {0, 1, 2, 3}) {
    const std::string host = rank < 2 ? "alpha" : "beta";
    const std::string number = std::to_string(rank);
    const auto line = "[" + host + "] [rank " + number + "] " + number + "/4 node " + (rank < 2 ? "0" : "1") + rest;
    EXPECT_TRUE(contains(done.out, line)) << line << " is not in: " << done.out;
  }
  EXPECT_EQ(lines_with(done.out, "ports "), 4) << done.out;
  EXPECT_EQ(lines_with(done.out, "," + port), 4) << done.out;
  EXPECT_EQ(lines_with(done.out, ""), 8) << done.out;  // the line that announces the ports is not shown
  EXPECT_EQ(done.err, "");
}

TEST_F(LaunchHosts, VariablesOfAShellDoNotEndTheScript) {
  write_ssh("exec bash --posix");  // the shell in which most of them are readonly
  const auto done = TuttiProcess(launch_script("echo started $ZONE"),
                                 {.variables = {"UID=1", "EUID=1", "PPID=1", "SHELLOPTS=braceexpand", "ZONE=here"}})
                        .wait();
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(lines_with(done.out, "started here"), 4) << done.out << done.err;
}

TEST_F(LaunchHosts, NamesTheHostOfTheRankThatOthersName) {
  // The launcher on beta fails after that on alpha, whose rank 1 names rank 2.
  const auto guard = folder_.path() / "guard_of_alpha";
  ASSERT_EQ(::mkfifo(guard.c_str(), 0600), 0);
  write_ssh("if [ $host = alpha ]; then echo $PPID >" + guard.string() + " & fi; exec \"$@\"");
  const auto script =
      "if [ $RANK = 1 ]; then echo 'barrier (operation 3): rank 2 exited; rank 1 was waiting'; exit 7; fi; "
      "[ $RANK = 2 ] || exit 0; read guard <" +
      guard.string() + "; until grep -q State:.Z /proc/$guard/status; do sleep 0.01; done; exit 4";
  const auto done = TuttiProcess(launch_script(script, {"--grace", "600"})).wait();
  EXPECT_EQ(done.exit_code, 4);
  EXPECT_TRUE(contains(done.err, "\ntutti: host beta failed first: exit code 4\n")) << done.err;
}

/// The ranks write the secret to files. It must not appear where other users can read it.
TEST_F(LaunchHosts, PassesASecretWithoutShowingIt) {
  write_ssh("echo \"$*\" >>" + (folder_.path() / "seen").string() + "; env >>" + (folder_.path() / "seen").string() +
            "; exec \"$@\"");
  const auto script =
      "echo \"$TUTTI_JOB_SECRET\" >" + folder_.path().string() + "/secret.$RANK; echo ${TUTTI_JOB_SECRET_FILE-no file}";
  std::set<std::string> secrets;
  for (int job = 0; job < 2; ++job) {
    const auto done = TuttiProcess(launch_script(script)).wait();
    EXPECT_EQ(done.exit_code, 0) << done.err;
    const auto secret = content_of(folder_.path() / "secret.0");
    EXPECT_EQ(secret.size(), 65U);
    for (const std::string rank : {"1", "2", "3"}) EXPECT_EQ(content_of(folder_.path() / ("secret." + rank)), secret);
    const auto word = secret.substr(0, 64);
    EXPECT_FALSE(contains(content_of(folder_.path() / "seen") + done.out + done.err, word));
    secrets.insert(word);
  }
  EXPECT_EQ(secrets.size(), 2U);  // each job has a different secret
}

TEST_F(LaunchHosts, PassesTheUsersSecret) {
  const auto file = folder_.path() / "own";
  std::ofstream(file) << "hush hush hush hush\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  const auto script = "echo \"knows $TUTTI_JOB_SECRET ${TUTTI_JOB_SECRET_FILE-and no file}\"";
  const auto done =
      TuttiProcess(launch_script(script), {.variables = {"TUTTI_JOB_SECRET_FILE=" + file.string()}}).wait();
  EXPECT_EQ(lines_with(done.out, "knows hush hush hush hush and no file"), 4) << done.out << done.err;

  std::filesystem::permissions(file, std::filesystem::perms::others_read, std::filesystem::perm_options::add);
  const auto refused =
      TuttiProcess(launch_script(script), {.variables = {"TUTTI_JOB_SECRET_FILE=" + file.string()}}).wait();
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_TRUE(contains(refused.err, "chmod 600 " + file.string())) << refused.err;
}

// A program that calls the function. It finds tutti in PATH.
TEST_F(LaunchHosts, IsAlsoAFunction) {
  const CommandsInPath in_path;
  const auto seen = folder_.path() / "seen";
  std::filesystem::create_directory(seen);
  const HostLaunchOptions options{
      .hosts = {{"alpha", 2}, {"beta", 2}},
      .ssh = ssh().string() + " -o BatchMode=yes",
      .job = {.master_addr = "127.0.0.1",
              .log_dir = folder_.path() / "logs",
              .command = {"/bin/sh", "-c",
                          "echo $GROUP_RANK >" + seen.string() + "/$RANK; echo $RANK; exit $((RANK / 3 * 4))"}}};
  EXPECT_EQ(launch_on_hosts(options), 4);
  for (const std::string rank : {"0", "1", "2", "3"}) {
    EXPECT_EQ(content_of(seen / rank), rank < "2" ? "0\n" : "1\n");
    EXPECT_EQ(content_of(folder_.path() / "logs" / ("rank_" + rank + ".log")), rank + "\n");
  }
  EXPECT_THROW(launch_on_hosts({.hosts = {}, .job = {.command = {"true"}}}), UsageError);
}

// The test is a rank of the second host.
TEST_F(LaunchHosts, TheFirstHostServesRanksOfOthersAfterTheExitOfItsOwn) {
  const std::string secret = "a secret of the tests";
  const auto joined = (folder_.path() / "joined").string();
  const auto done = (folder_.path() / "done").string();
  const std::string script =
      "trap 'exit 0' TERM; echo port $TUTTI_MASTER_PORT; if [ $RANK -lt 2 ]; then file=" + joined +
      "; else file=" + done + "; fi; until [ -e $file ]; do sleep 0.01; done";
  for (const bool is_stopped : {true, false}) {
    TuttiProcess process(launch_script(script), {.variables = {"TUTTI_JOB_SECRET=" + secret}});
    for (const char* line : {"[rank 0] port ", "[rank 1] port ", "[rank 3] port "})
      process.wait_for_line(line);  // trap
    const auto port = static_cast<std::uint16_t>(std::stoi(process.wait_for_line("[rank 2] port ")));
    coordinator::test::Told told;
    {
      coordinator::Client rank(coordinator::test::client_options(port, 2, 4, coordinator::test::secret(secret)),
                               told.events());
      is_stopped ? process.send(SIGTERM) : std::ofstream{joined}.close();
      EXPECT_TRUE(told.wait_until([&] { return told.failed.size() == 2; }));  // the exits of ranks 0 and 1
      process.ends_within(std::chrono::milliseconds(500));
      EXPECT_EQ(rank.num_keys(), 0);
    }
    if (!is_stopped) std::ofstream{done};
    const auto end = process.wait();
    EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  }
}

TEST_F(LaunchHosts, NamesTheHostThatFailedAndEndsTheOthers) {
  const auto done =
      TuttiProcess(launch_script("if [ $RANK = 3 ]; then exit 7; fi; exec sleep 1000", {"--grace", "0.05"})).wait();
  EXPECT_EQ(done.exit_code, 7);
  EXPECT_TRUE(contains(done.err, "[beta] tutti: rank 3 failed first: exit code 7")) << done.err;
  EXPECT_TRUE(contains(done.err, "\ntutti: host beta failed first: exit code 7\n")) << done.err;
}

// Rank 2, on beta, is stopped: it does not end by itself.
TEST_F(LaunchHosts, NamesTheHostOfTheRankThatTheOthersName) {
  const auto done = TuttiProcess(launch_script("if [ $RANK = 0 ]; then echo 'barrier (operation 3): rank 2 missed "
                                               "heartbeats for 15 s'; exit 7; fi; exec sleep 1000",
                                               {"--grace", "0.05"}))
                        .wait();
  EXPECT_EQ(done.exit_code, 7);
  EXPECT_TRUE(
      contains(done.err, "\ntutti: host alpha failed: exit code 7; its ranks name rank 2, which is on host beta"))
      << done.err;
}

TEST_F(LaunchHosts, NamesAHostThatCannotBeReached) {
  write_ssh("if [ $host = beta ]; then echo no route to $host >&2; exit 255; fi; exec \"$@\"");
  const auto done = TuttiProcess(launch_script("exec sleep 1000", {"--grace", "0.05"})).wait();
  EXPECT_EQ(done.exit_code, 255);
  EXPECT_TRUE(contains(done.err, "[beta] no route to beta")) << done.err;
  EXPECT_TRUE(contains(done.err, "tutti: host beta failed first: exit code 255 (ssh could not reach it")) << done.err;
  // The first host, whose port all other hosts need.
  write_ssh("if [ $host = alpha ]; then exit 255; fi; exec \"$@\"");
  const auto first = TuttiProcess(launch_script("echo never")).wait();
  EXPECT_EQ(first.exit_code, 255);
  EXPECT_TRUE(contains(first.err, "tutti: host alpha failed first")) << first.err;
  EXPECT_FALSE(contains(first.out, "never")) << first.out;
}

TEST_F(LaunchHosts, RestartsAllRanksOnAllHosts) {
  const std::string script =
      "echo rank $RANK in attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
      "[ -n \"$TUTTI_MASTER_PORT\" ] || exit 9; if [ $RANK = 3 ] && [ $TORCHELASTIC_RESTART_COUNT != 2 ]; then exit 7; "
      "fi; "
      "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exec sleep 1000";
  const auto done = TuttiProcess(launch_script(script, {"--grace", "0.05", "--max-restarts", "2"})).wait();
  EXPECT_EQ(done.exit_code, 0) << done.err;
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_EQ(lines_with(done.out, "rank " + std::to_string(rank) + " in attempt 2 of 2"), 1) << done.out;
  }
  EXPECT_EQ(lines_with(done.err, "tutti: host beta failed first: exit code 7"), 2) << done.err;
  EXPECT_EQ(lines_with(done.err, "tutti: all ranks start again, restart 1 of 2"), 1) << done.err;
  EXPECT_EQ(lines_with(done.err, "tutti: all ranks start again, restart 2 of 2"), 1) << done.err;
  EXPECT_FALSE(contains(done.out, "listens on port")) << done.out;
}

TEST_F(LaunchHosts, RestartsWithTheUsersPort) {
  const auto port = std::to_string(reserve_port(std::nullopt).port);
  const auto done = TuttiProcess(launch_script("[ $RANK$TORCHELASTIC_RESTART_COUNT != 20 ]",
                                               {"--grace", "0.05", "--max-restarts", "1", "--master-port", port}))
                        .wait();
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_TRUE(contains(done.err, "restart 1 of 1")) << done.err;
}

TEST_F(LaunchHosts, RestartsNoProgramThatCannotBeRun) {
  const auto done = TuttiProcess(launch_script("exit 127", {"--grace", "0.05", "--max-restarts", "2"})).wait();
  EXPECT_EQ(done.exit_code, 127);
  EXPECT_FALSE(contains(done.err, "start again")) << done.err;
}

TEST_F(LaunchHosts, EndsAllHostsWhenInterrupted) {
  for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"}, std::pair{SIGINT, "SIGINT"}}) {
    TuttiProcess process(launch_script("echo pid-$RANK=$$; exec sleep 1000", {"--max-restarts", "2"}));
    std::vector<pid_t> ranks;
    for (const int rank : {0, 1, 2, 3}) {
      ranks.push_back(std::stoi(process.wait_for_line("pid-" + std::to_string(rank) + "=")));
    }
    process.send(signal);
    const auto done = process.wait();
    EXPECT_EQ(done.exit_code, 128 + signal);
    EXPECT_TRUE(contains(done.err, std::string("tutti: stopped by ") + name)) << done.err;
    EXPECT_FALSE(contains(done.err, "start again")) << done.err;
    for (const pid_t rank : ranks) EXPECT_TRUE(exits_soon(rank));
  }
}

// As ssh: signals end it at once and do not reach the command, whose standard input ends then. It ends with the
// command.
constexpr const char* ssh_in_another_session =
    "exec 3<&0; mkfifo $0-$$; cat <&3 >$0-$$ 2>/dev/null & "
    "setsid \"$@\" <$0-$$; code=$?; kill $! 2>/dev/null; exit $code";

TEST_F(LaunchHosts, WaitsForRanksThatSaveWhenInterrupted) {
  write_ssh(ssh_in_another_session);
  // Longer than the launcher reads the output of processes whose ssh has ended.
  TuttiProcess process(launch_script("trap 'sleep 1.5; echo saved; exit 0' TERM; echo ready-$RANK; " + wait_forever));
  for (const int rank : {0, 1, 2, 3}) process.wait_for_line("ready-" + std::to_string(rank));
  process.send(SIGTERM);
  const auto done = process.wait();
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(lines_with(done.out, "saved"), 4) << done.out;
}

TEST_F(LaunchHosts, RestartsWhenTheRanksOfAllHostsHaveEnded) {
  write_ssh(ssh_in_another_session);
  const auto saved = (folder_.path() / "saved-").string();
  const std::string script = "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then [ -e " + saved + "0 ] && [ -e " + saved +
                             "1 ]; exit; fi; [ $RANK -lt 2 ] || exit 3; trap 'sleep 2; touch " + saved +
                             "$RANK; exit 1' TERM; " + wait_forever;
  const auto done = TuttiProcess(launch_script(script, {"--grace", "3", "--max-restarts", "1"})).wait();
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_TRUE(contains(done.err, "host beta failed first: exit code 3")) << done.err;
}

// Signals from here do not reach another session, as they do not reach another machine.
TEST_F(LaunchHosts, AHostWhoseConnectionIsCutEndsItsRanks) {
  write_ssh("exec setsid --fork --wait \"$@\"");
  TuttiProcess process(launch_script("echo pid-$RANK=$$; exec sleep 1000", {"--grace", "0.05"}));
  std::vector<pid_t> ranks;
  for (const int rank : {0, 1, 2, 3}) {
    ranks.push_back(std::stoi(process.wait_for_line("pid-" + std::to_string(rank) + "=")));
  }
  process.send(SIGKILL);
  for (const pid_t rank : ranks) EXPECT_TRUE(exits_soon(rank));
}

TEST_F(LaunchHosts, RefusesBadInputInOneLine) {
  const auto expect_refusal = [&](const Words& words, const std::string& part) {
    const auto done = run_tutti(words);
    EXPECT_EQ(done.exit_code, 2) << part;
    EXPECT_EQ(lines_with(done.err, ""), 1) << done.err;
    EXPECT_TRUE(contains(done.err, part)) << part << " is not in: " << done.err;
  };
  expect_refusal({"launch", "--hostfile", "/no/such/file", "--", "true"}, "cannot read --hostfile /no/such/file");
  for (const std::string& file : {std::string("/dev/zero"), std::string("/dev/stdin"), folder_.path().string()}) {
    expect_refusal({"launch", "--hostfile", file, "--", "true"}, "--hostfile " + file + " is not a regular file");
  }
  const auto many = folder_.path() / "many";
  std::ofstream(many) << std::string((std::size_t{1} << 20) + 1, '#');
  expect_refusal({"launch", "--hostfile", many.string(), "--", "true"}, "has more than 1048576 bytes");
  std::ofstream(many) << "alpha slots=5000\n";
  expect_refusal({"launch", "--hostfile", many.string(), "--", "true"}, "a host runs at most 4096 ranks");
  expect_refusal({"launch", "--hostfile", hostfile()}, "no program to start");
  expect_refusal({"launch", "--hostfile", hostfile(), "--nnodes", "2", "--", "true"}, "leave them out");
  expect_refusal({"launch", "--hostfile", hostfile(), "-n", "3", "--", "true"},
                 "where a host has 2 slots: leave -n out");
  expect_refusal({"launch", "--hostfile", hostfile(), "--max-restarts", "-1", "--", "true"}, "--max-restarts must not");
  expect_refusal({"launch", "--hostfile", hostfile(), "--ssh", "no-such-ssh", "--", "true"}, "no-such-ssh");
  expect_refusal({"launch", "--hostfile", hostfile(), "--ssh", "", "--", "true"}, "--ssh is empty");
}

}  // namespace
}  // namespace tutti::test::launch_hosts_test
