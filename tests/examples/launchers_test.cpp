// The gpt example under mpirun, srun's variables and `tutti launch`, 2 ranks each: the same losses.
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <array>
#include <cstdlib>
#include <regex>
#include <stdexcept>
#include <string>

namespace tutti::launchers_test {
namespace {

const std::string tutti_command = TUTTI_COMMAND;
const std::string mpirun = TUTTI_MPIRUN;  // empty where the build found none
const std::string gpt = std::string(GPT_PROGRAM) +
                        " --steps 4 --accumulation 2 --batch-size 2 --context 32 --width 32 --layers 2 --heads 2 "
                        "--sample-bytes 0 --data " SOME_TEXT;
// Open MPI requires these as root, and with fewer cores than ranks. Other MPI implementations ignore them.
const std::string mpirun_two =
    "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 " + mpirun +
    " -n 2 ";

/// Runs a shell command and returns its stdout and stderr. The test fails unless the exit code is `exit_code`.
std::string output_of(const std::string& command, int exit_code = 0) {
  FILE* pipe = ::popen(("{ " + command + "; } 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen");
  std::string output;
  std::array<char, 4096> buffer;
  while (const auto count = std::fread(buffer.data(), 1, buffer.size(), pipe)) output.append(buffer.data(), count);
  const int status = ::pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == exit_code) << command << '\n' << output;
  return output;
}

/// Returns the losses and the number of synchronizations that the run printed.
std::string losses_in(const std::string& output) {
  std::smatch found;
  std::string text;
  if (std::regex_search(output, found, std::regex("held-out loss [0-9.]+ -> [0-9.]+"))) text += found.str();
  if (std::regex_search(output, found, std::regex("passes on each: [0-9]+ synchronizations"))) text += found.str();
  return text;
}

int count(const std::string& output, const std::string& line) {
  const std::regex pattern(line);
  return static_cast<int>(
      std::distance(std::sregex_iterator(output.begin(), output.end(), pattern), std::sregex_iterator()));
}

std::string launched_losses() {
  return losses_in(output_of(tutti_command + " launch -n 2 -- " + gpt));
}

/// Runs `command` as tasks 0 and 1 of a Slurm step on one node.
std::string as_two_slurm_tasks(const std::string& command) {
  // Not a number, so that no real Slurm job has this id.
  const std::string variables =
      "export SLURM_NTASKS=2 SLURM_NODEID=0 SLURM_NNODES=1 SLURM_STEP_ID=0 SLURM_JOB_ID=test-$$ "
      "SLURM_JOB_NODELIST=localhost; ";
  return variables + "SLURM_PROCID=1 SLURM_LOCALID=1 " + command + " & SLURM_PROCID=0 SLURM_LOCALID=0 " + command +
         "; first=$?; wait $! && exit $first";
}

TEST(Launchers, MpirunGivesTheLossesOfTuttiLaunch) {
  if (mpirun.empty()) GTEST_SKIP() << "the build found no mpirun (openmpi-bin or mpich)";
  const auto losses = launched_losses();
  EXPECT_NE(losses, "");
  EXPECT_EQ(losses_in(output_of(mpirun_two + gpt)), losses);
}

TEST(Launchers, TheMpiBackendGivesTheSameLosses) {
  if (mpirun.empty()) GTEST_SKIP() << "the build found no mpirun (openmpi-bin or mpich)";
  const auto losses = losses_in(output_of("TUTTI_BACKEND=tcp " + mpirun_two + gpt));
  EXPECT_NE(losses, "");
  if (!HAS_MPI_BACKEND) {
    const auto output = output_of("TUTTI_BACKEND=mpi " + mpirun_two + gpt, 1);
    EXPECT_EQ(count(output, "tutti was built without MPI"), 2) << output;
    return;
  }
  for (const std::string backend : {"mpi", "mpi_only"}) {
    EXPECT_EQ(losses_in(output_of("TUTTI_BACKEND=" + backend + " " + mpirun_two + gpt)), losses) << backend;
  }
}

TEST(Launchers, SrunsVariablesGiveTheLossesOfTuttiLaunch) {
  const auto losses = launched_losses();
  EXPECT_NE(losses, "");
  EXPECT_EQ(losses_in(output_of(as_two_slurm_tasks(gpt))), losses);
}

TEST(Launchers, TorchrunGivesTheLossesOfTuttiLaunch) {
  const char* torchrun = std::getenv("TUTTI_TORCHRUN");
  if (torchrun == nullptr) GTEST_SKIP() << "TUTTI_TORCHRUN names no torchrun: ./dev peers does";
  const auto losses = launched_losses();
  EXPECT_NE(losses, "");
  const std::string two = std::string(torchrun) + " --standalone --nproc-per-node 2 --no-python ";
  EXPECT_EQ(losses_in(output_of(two + gpt)), losses);
}

TEST(Launchers, TuttiEnvShowsTheChosenLauncher) {
  const auto alone = output_of(tutti_command + " env");
  EXPECT_EQ(count(alone, "launcher +none"), 1) << alone;
  EXPECT_EQ(count(alone, "backend +tcp: yes"), 1) << alone;
  EXPECT_EQ(count(alone, "backend +nccl: no, tutti was compiled without NCCL"), 1) << alone;
  EXPECT_EQ(count(alone, "backend +mpi: no, "), 1) << alone;
  EXPECT_EQ(count(alone, "LibTorch +2\\.[0-9]+"), 1) << alone;
  const auto launched = output_of("SLURM_PROCID=0 SLURM_NTASKS=1 " + tutti_command + " launch -n 2 -- tutti env");
  EXPECT_EQ(count(launched, "launcher +torchrun: RANK=[01] WORLD_SIZE=2"), 2) << launched;
  EXPECT_EQ(count(launched, "also seen +slurm \\(set, but not started by srun"), 2) << launched;
  EXPECT_EQ(count(launched, "rank +1 of 2"), 2) << launched;  // and the local rank
  const auto slurm = output_of(as_two_slurm_tasks(tutti_command + " env"));
  EXPECT_EQ(count(slurm, "launcher +slurm: "), 2) << slurm;
  EXPECT_EQ(count(slurm, "master +a socket of this user on this node .*job slurm-test-"), 2) << slurm;
  const auto broken = output_of("RANK=x WORLD_SIZE=2 " + tutti_command + " env", 2);
  EXPECT_EQ(count(broken, "error +RANK='x' is not a whole number"), 1) << broken;
}

TEST(Launchers, TuttiEnvRefusesTheVariablesThatProgramsRefuse) {
  for (const std::string variable : {"TUTTI_BACKEND=foo", "TUTTI_HEARTBEAT_TIMEOUT=abc", "TUTTI_DEADLOCK_TIMEOUT=-1"}) {
    const auto output = output_of(variable + " " + tutti_command + " env", 2);
    EXPECT_EQ(count(output, "error +" + variable + ": "), 1) << output;
  }
  const std::string two_ranks = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 ";
  const auto encrypted = output_of(two_ranks + "TUTTI_ENCRYPTION=1 " + tutti_command + " env", 2);
  EXPECT_EQ(count(encrypted, "error +TUTTI_ENCRYPTION=1: encryption between ranks needs a secret"), 1) << encrypted;
  const auto output = output_of("TUTTI_LOG_LEVEL=bogus " + tutti_command + " env", 2);
  EXPECT_EQ(count(output, "error +TUTTI_LOG_LEVEL='bogus' is not a level"), 1) << output;
}

TEST(Launchers, TuttiEnvUnderMpirun) {
  if (mpirun.empty()) GTEST_SKIP() << "the build found no mpirun (openmpi-bin or mpich)";
  const auto ranks = output_of(mpirun_two + tutti_command + " env");
  EXPECT_EQ(count(ranks, "launcher +(openmpi: OMPI_COMM_WORLD|mpich: PMI)_RANK=[01]"), 2) << ranks;
  EXPECT_EQ(count(ranks, "local rank +[01] of 2"), 2) << ranks;
  const char* const mpi = HAS_MPI_BACKEND ? "backend +mpi: yes" : "backend +mpi: no, tutti was built without MPI";
  EXPECT_EQ(count(ranks, mpi), 2) << ranks;
}

}  // namespace
}  // namespace tutti::launchers_test
