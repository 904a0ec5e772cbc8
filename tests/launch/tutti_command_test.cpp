// The command line of `tutti`.
#include <gtest/gtest.h>

#include <fstream>

#include "launch/master_socket.h"
#include "launch/rank_variables.h"
#include "launch/tutti_process.h"

namespace tutti::test::tutti_command_test {
namespace {

using Words = std::vector<std::string>;

void write_program(const std::filesystem::path& file, const std::string& script) {
  std::ofstream(file) << "#!/bin/sh\n" << script << '\n';
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
}

void expect_refusal(const Words& arguments, const std::string& part) {
  const auto done = run_tutti(arguments);
  EXPECT_EQ(done.exit_code, 2) << part;
  EXPECT_EQ(done.out, "");
  EXPECT_EQ(lines_with(done.err, ""), 1) << done.err;
  EXPECT_TRUE(contains(done.err, part)) << part << " is not in: " << done.err;
}

TEST(TuttiCommand, ShowsHelpAndVersion) {
  for (const Words& arguments : {Words{}, Words{"--help"}, Words{"-h"}, Words{"help"}}) {
    const auto done = run_tutti(arguments);
    EXPECT_EQ(done.exit_code, 0);
    EXPECT_TRUE(contains(done.out, "tutti launch -n 4 -- ./train")) << done.out;
  }
  EXPECT_TRUE(contains(run_tutti({"--version"}).out, "tutti 0."));
  const auto launch_help = run_tutti({"launch", "--help"});
  EXPECT_EQ(launch_help.exit_code, 0);
  EXPECT_TRUE(contains(launch_help.out, "--master-port")) << launch_help.out;
  EXPECT_EQ(run_tutti({"help", "launch"}).out, launch_help.out);
  EXPECT_TRUE(contains(run_tutti({"help", "inspect"}).out, "--operations"));
  expect_refusal({"help", "lanch"}, "there is no command 'lanch': did you mean launch?");
  for (const auto* noise : {"INT", "FLOAT", " in [", "--help TEXT"})
    EXPECT_FALSE(contains(launch_help.out, noise)) << launch_help.out;
}

TEST(TuttiCommand, RefusesBadInputInOneLine) {
  expect_refusal({"train"}, "there is no command 'train'");
  expect_refusal({"launch"}, "no program to start");
  expect_refusal({"launch", "-n", "2", "--"}, "no program to start");
  expect_refusal({"launch", "-n"}, "-n");
  expect_refusal({"launch", "-n", "0", "--", "true"}, "-n must be at least 1");
  expect_refusal({"launch", "-n", "-3", "--", "true"}, "-n must be at least 1");
  expect_refusal({"launch", "-n", "many", "--", "true"}, "many");
  expect_refusal({"launch", "-n", "100000000", "--", "true"}, "-n 100000000: a node runs at most 4096 ranks");
  expect_refusal({"launch", "-n", "99999999999999", "--", "true"}, "-n 99999999999999 is out of range");
  expect_refusal({"launch", "--num-processes", "200000", "--", "true"}, "at most 4096 ranks");
  expect_refusal({"launch", "--nnodes", "2000000", "--master-addr", "a", "--master-port", "1", "--", "true"},
                 "a job has at most 1048576 ranks");
  expect_refusal({"launch", "--ranks", "2", "--", "true"}, "there is no option --ranks");
  expect_refusal({"launch", "--grace", "-1", "--", "true"}, "--grace");
  expect_refusal({"launch", "--master-port", "70000", "--", "true"}, "--master-port");
  expect_refusal({"launch", "--nnodes", "2", "--", "true"}, "--master-addr");
  expect_refusal({"launch", "--nnodes", "2", "--master-port", "1234", "--", "true"}, "--master-addr");
  expect_refusal({"launch", "--nnodes", "2", "--master-addr", "[::1]", "--master-port", "1234", "--", "true"},
                 "without brackets");
  expect_refusal({"launch", "--node-rank", "1", "--", "true"}, "--node-rank 1");
  expect_refusal({"launch", "--max-restarts", "-1", "--", "true"}, "--max-restarts -1");
  expect_refusal({"launch", "--max-restarts", "2", "--", "./there-is-no-such-program"}, "check the path");
  expect_refusal({"launch", "--", "there-is-no-such-program"}, "there is no program 'there-is-no-such-program'");
  expect_refusal({"launch", "--", "./there-is-no-such-program"}, "check the path");
  expect_refusal({"launch", "--", "/etc/passwd"}, "chmod +x");
  expect_refusal({"launch", "--log-dir", "/proc/nowhere", "--", "true"}, "--log-dir");
}

TEST(TuttiCommand, NamesTheLimitOfDescriptorsBeforeItStartsRanks) {
  const std::string script = "ulimit -n 100 && exec " TUTTI_COMMAND " launch -n 100 -- true";
  const auto done = run_tutti(launch_script(1, script));
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_TRUE(contains(done.err, "[rank 0] tutti: -n 100 needs 564 file descriptors, but this process may open 100"))
      << done.err;
  const std::string raised = "ulimit -Sn 100 && exec " TUTTI_COMMAND " launch -n 20 -- sh -c 'echo rank $RANK'";
  EXPECT_EQ(lines_with(run_tutti(launch_script(1, raised)).out, "rank 19"), 1);
}

TEST(TuttiCommand, NamesOptionsAsTheUserTypedThem) {
  expect_refusal({"launch", "-n", "two", "--", "true"}, "tutti: -n takes a whole number, not 'two': see");
  expect_refusal({"launch", "--nproc_per_node=two", "true"}, "tutti: --nproc-per-node takes a whole number, not 'two'");
  expect_refusal({"launch", "--grace", "soon", "true"}, "tutti: --grace");
  expect_refusal({"launch", "-n", "1", "-n", "2", "true"}, "tutti: -n is given more than once: give it once");
  expect_refusal({"launch", "-n", "--", "true"}, "tutti: -n needs a value after it");
  expect_refusal({"launch", "--master-port", "0", "true"}, "tutti: --master-port: Value 0 not in range 1 to 65535");
  expect_refusal({"inspect", "-n"}, "tutti: -n needs a value after it");
  expect_refusal({"inspect", "-n", "x"}, "tutti: -n takes a whole number, not 'x'");
  expect_refusal({"inspect", "--operation", "3"}, "there is no option --operation: did you mean --operations?");
}

TEST(TuttiCommand, NamesAnUnknownOptionBeforeWhatItHides) {
  expect_refusal({"launch", "--stand-alone", "-n", "2", "--", "true"}, "tutti: there is no option --stand-alone");
  expect_refusal({"launch", "-t", "-n", "2", "--", "true"}, "tutti: there is no option -t: see");
  expect_refusal({"launch", "--foo", "1", "-n", "two", "--", "true"}, "tutti: there is no option --foo");
  expect_refusal({"report", "--bogus"}, "there is no option --bogus");
  expect_refusal({"report"}, "RUN is missing");
}

TEST(TuttiCommand, RefusesWhatIsNoNumber) {
  expect_refusal({"launch", "--grace", "nan", "--", "true"}, "tutti: --grace takes a number, not 'nan': see");
  expect_refusal({"inspect", "-n", "-3"}, "tutti: -n takes a number of 0 or more, not '-3': see");
}

TEST(TuttiCommand, AcceptsTheWordsOfTorchrun) {
  const Words job{"sh", "-c", "echo of $WORLD_SIZE"};
  const auto run = [&](Words words) {
    words.insert(words.begin(), "launch");
    words.insert(words.end(), job.begin(), job.end());
    return TuttiProcess(words, {.variables = {"CUDA_VISIBLE_DEVICES="}}).wait();
  };
  const auto cores = std::to_string(allowed_cores());
  for (const auto* word : {"auto", "cpu"}) {
    const auto done = run({"--standalone", "--no_python", "--nnodes=1:1", std::string("--nproc-per-node=") + word});
    EXPECT_EQ(done.exit_code, 0) << done.err;
    EXPECT_EQ(lines_with(done.out, "of " + cores), allowed_cores()) << done.out;
  }
  EXPECT_EQ(lines_with(run({"--standalone", "-n", "2"}).out, "of 2"), 2);
  EXPECT_TRUE(contains(run({"-n", "gpu"}).err, "tutti: -n gpu: there is no NVIDIA GPU")) << run({"-n", "gpu"}).err;
  expect_refusal({"launch", "--nnodes", "1:2", "--", "true"},
                 "--nnodes 1:2 is a range, but tutti launch needs a fixed number of nodes: set one");
}

TEST(TuttiCommand, SuggestsTheNearestName) {
  expect_refusal({"launch", "--nproc-pernode", "2", "--", "true"},
                 "there is no option --nproc-pernode: did you mean --nproc-per-node?");
  expect_refusal({"launch", "--nproc", "2", "--", "true"}, "did you mean --nproc-per-node?");
  expect_refusal({"launch", "--max_restart=1", "--", "true"},
                 "there is no option --max-restart: did you mean --max-restarts?");
  expect_refusal({"launch", "--colour", "red", "--", "true"}, "there is no option --colour: see");
  expect_refusal({"lanch", "--", "true"}, "there is no command 'lanch': did you mean launch?");
}

TEST(TuttiCommand, AcceptsTheSpellingsOfOtherLaunchers) {
  const std::vector<Words> spellings{
      {"-np", "2"},
      {"-np2"},
      {"--np", "2"},
      {"--nproc_per_node=2"},
      {"--nproc_per_node", "2"},
      {"--num_processes", "2"},
      {"--num-processes=2", "--num_machines", "1"},
      {"--nproc_per_node=2", "--max_restarts=0", "--master_addr", "127.0.0.1"},
  };
  for (const Words& spelling : spellings) {
    Words words{"launch"};
    words.insert(words.end(), spelling.begin(), spelling.end());
    words.insert(words.end(), {"sh", "-c", "echo $RANK/$WORLD_SIZE", "-np"});
    const auto done = run_tutti(words);
    EXPECT_EQ(done.exit_code, 0) << spelling.front() << ": " << done.err;
    EXPECT_TRUE(contains(done.out, "[rank 1] 1/2\n")) << spelling.front() << ": " << done.out;
  }
  // Accelerate's count is that of the whole job.
  expect_refusal({"launch", "--num_processes", "3", "--nnodes", "2", "--master-addr", "node0", "--master-port", "1234",
                  "--", "true"},
                 "cannot be split evenly");
  expect_refusal({"launch", "--num_processes", "2", "-n", "2", "--", "true"}, "-n or --hostfile");
  expect_refusal({"launch", "--num_processes", "0", "--", "true"}, "-n must be at least 1");
}

TEST(TuttiCommand, WarnsWhereSrunStartsAJobOnEachNode) {
  const std::vector<std::string> of_srun{"SLURM_PROCID=1",  "SLURM_NTASKS=2",          "SLURM_LOCALID=0",
                                         "SLURM_NODEID=1",  "SLURM_NNODES=2",          "SLURM_JOB_NODELIST=node[1-2]",
                                         "SLURM_JOB_ID=17", "SLURM_JOB_NAME=training", "SLURM_STEP_ID=0"};
  const std::string warning = "slurm has started 2 launchers, and --nnodes is 1";
  const auto finished = TuttiProcess({"launch", "--", "true"}, {.variables = of_srun}).wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.err.find(warning), std::string::npos) << finished.err;
  EXPECT_EQ(run_tutti({"launch", "--", "true"}).err.find(warning), std::string::npos);
  // mpirun on two nodes, without the MASTER_ADDR that ranks would need.
  const std::vector<std::string> of_mpirun{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2",
                                           "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=1"};
  EXPECT_EQ(TuttiProcess({"launch", "--", "true"}, {.variables = of_mpirun}).wait().exit_code, 0);
}

TEST(TuttiCommand, RefusesAPortInUse) {
  const auto taken = listen_for_ranks("127.0.0.1", std::nullopt);
  const auto port = std::to_string(taken.port);
  expect_refusal({"launch", "--master-port", port, "--", "true"}, "port " + port + " is in use");
}

TEST(TuttiCommand, UsesTheGivenPort) {
  const auto [port, done] = run_with_a_free_port([](const std::string& free) {
    return Words{"launch", "--master-port", free, "--", "sh", "-c", "echo $MASTER_PORT"};
  });
  EXPECT_EQ(done.out, "[rank 0] " + port + "\n") << done.err;
}

TEST(TuttiCommand, DoesNotBindThePortOfAnotherNode) {
  const auto of_node_0 = listen_for_ranks("127.0.0.1", std::nullopt);  // would be in use if this node wanted it
  const auto port = std::to_string(of_node_0.port);
  const auto done = run_tutti({"launch", "-n", "2", "--nnodes=2", "--node-rank", "1", "--master-addr", "127.0.0.1",
                               "--master-port", port, "--", "sh", "-c", "echo $RANK/$WORLD_SIZE $MASTER_PORT"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_TRUE(contains(done.out, "[rank 2] 2/4 " + port + "\n")) << done.out;
  EXPECT_TRUE(contains(done.out, "[rank 3] 3/4 " + port + "\n")) << done.out;
}

TEST(TuttiCommand, PassesTheProgramsArguments) {
  TemporaryFolder folder;
  write_program(folder.path() / "train", "echo \"$#:$*\"");
  const TuttiProcess::Options in_folder{.working_directory = folder.path()};
  const std::vector<std::pair<Words, std::string>> cases{
      {{"launch", "-n", "4", "--", "./train", "--flag"}, "1:--flag"},
      {{"launch", "-n", "4", "./train", "--flag"}, "1:--flag"},
      {{"launch", "-n4", "./train", "-n", "5"}, "2:-n 5"},
      {{"launch", "--nproc-per-node=4", "--", "./train", "a", "--", "b c"}, "3:a -- b c"},
      {{"launch", "-n", "4", "./train", "--", "b"}, "2:-- b"},
      {{"launch", "-n", "4", "--", "./train", "--help"}, "1:--help"},
  };
  for (const auto& [arguments, expected] : cases) {
    const auto done = TuttiProcess(arguments, in_folder).wait();
    EXPECT_EQ(done.exit_code, 0) << done.err;
    EXPECT_EQ(lines_with(done.out, expected), 4) << expected << " is not in: " << done.out;
  }
}

TEST(TuttiCommand, HintsAtAProgramInTheWorkingDirectory) {
  TemporaryFolder folder;
  write_program(folder.path() / "train-here", "exit 0");
  const auto done = TuttiProcess({"launch", "--", "train-here"}, {.working_directory = folder.path()}).wait();
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_TRUE(contains(done.err, "did you mean ./train-here?")) << done.err;
}

TEST(TuttiCommand, FindsProgramsNextToItself) {
  TuttiProcess process({"launch", "--", "tutti", "--version"}, {.variables = {"PATH=/nowhere"}});
  const auto done = process.wait();
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_TRUE(contains(done.out, "[rank 0] tutti 0.")) << done.out;
}

TEST(TuttiCommand, RefusesToRunTheRankGuardByHand) {
  const auto done = run_tutti({"launch", "--", "tutti-rank"});
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_TRUE(contains(done.err, "not by hand")) << done.err;
}

}  // namespace
}  // namespace tutti::test::tutti_command_test
