// Ranks: 2, 3 and 4 processes under mpirun with MPI, and 1 and 2 processes without MPI. The tests under mpirun are
// skipped if the build found no MPI.
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <stdexcept>

#include "comm/collective_checks.h"
#include "comm/transport/mpi/mpi_environment.h"
#include "comm/transport/mpi/mpi_tags.h"
#include "comm/transport/mpi/orphaned_requests.h"
#include "support/rank_program.h"
#include "support/ranks.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/backend_status.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::test::mpi_test {
namespace {

using std::chrono::milliseconds;

Communicator over_mpi(milliseconds timeout = std::chrono::minutes(30)) {
  return Communicator::connect(read_environment(), {.backend = "mpi_only", .timeout = timeout});
}

/// Prints a line that the test expects in the output.
void print_line(const std::string& text) {
  std::puts(text.c_str());
  std::fflush(stdout);
}

template <typename Body>
void report_failure_of(const Body& body) {
  try {
    body();
    print_line("nothing was thrown");
  } catch (const TimeoutError& failure) {
    print_line(std::string("TimeoutError: ") + failure.what());
  } catch (const PeerError& failure) {
    print_line(std::string("PeerError: ") + failure.what());
  } catch (const UsageError& failure) {
    print_line(std::string("UsageError: ") + failure.what());
  }
}

const RankProgram every_check("every_check_over_mpi", [] {
  const auto communicator = over_mpi();
  EXPECT_EQ(communicator.backend_name(), "mpi");
  check_all(communicator);
});

// One rank per node, one node, and two nodes of two ranks: the composition of `auto`, with MPI in place of TCP.
const RankProgram composed("composed_with_mpi", [] {
  const int size = read_environment().world_size;
  const std::map<int, std::string> names{{1, "shared memory + mpi"}, {2, "shared memory + mpi"}, {size, "mpi"}};
  for (const int nodes : {size, 1, 2}) {
    const auto communicator = Communicator::connect(on_nodes(nodes), {.backend = "mpi"});
    EXPECT_EQ(communicator.backend_name(), names.at(nodes));
    check_all(communicator);
  }
});

at::Tensor gradient_sum(const Communicator& communicator, std::int64_t elements) {
  auto flat = at::arange(elements).to(at::kFloat).mul_(0.37).sin_().mul_(communicator.rank() + 1.1);
  auto sum = comm::GradientCommunicator(communicator).start_all_reduce(flat);
  const auto exchange =
      comm::GradientCommunicator(communicator).start_small_all_gather(std::as_bytes(std::span("header", 6)));
  sum->finish_reduce_scatter(1.0 / communicator.size());
  sum->wait();
  EXPECT_EQ(exchange->wait().size(), 6U * static_cast<std::size_t>(communicator.size()));
  return flat;
}

// Short messages, which MPI sends at once, and long messages, for which MPI waits for the receiver.
const RankProgram sums("sums_over_mpi", [] {
  const auto tcp = Communicator::connect(read_environment(), {.backend = "tcp"});
  const auto mpi = over_mpi();
  for (const std::int64_t elements : {1, 1000, 3'000'000}) {
    EXPECT_TRUE(gradient_sum(mpi, elements).equal(gradient_sum(tcp, elements))) << elements;
  }
});

// MPI has few numbers for groups (MPICH: 2048). A number is released when all ranks have left its group.
const RankProgram groups("many_groups_over_mpi", [] {
  const auto communicator = over_mpi();
  for (int i = 0; i < 100; ++i) {
    const auto again = communicator.duplicate("again");
    auto ones = at::ones({5});
    again.all_reduce(ones).wait();
    EXPECT_EQ(ones.sum().item<double>(), 5.0 * communicator.size());
  }
  EXPECT_LE(comm::OrphanedRequests::of_process()->unreleased_groups(), 2U);  // the last close messages may be in flight
});

const RankProgram one_is_absent("one_is_absent_over_mpi", [] {
  const auto outside = Communicator::connect(read_environment(), {.backend = "tcp"});
  const auto communicator = over_mpi();
  outside.barrier().wait();  // from here on only the intended rank is late
  if (communicator.rank() != 1) {
    report_failure_of([&] { communicator.barrier({.timeout = milliseconds(12000), .name = ""}).wait(); });
    EXPECT_TRUE(communicator.failed());
  }
  outside.barrier().wait();
});

// MPI cannot cancel a send: a message that the peer never receives must keep its memory, although no thread waits for
// it.
const RankProgram leaves_a_sum("leaves_a_sum_over_mpi", [] {
  static std::vector<float> memory(3'000'000);  // created before MPI starts, destroyed after MPI ends
  const auto outside = Communicator::connect(read_environment(), {.backend = "tcp"});
  const auto communicator = over_mpi();
  if (communicator.rank() == 0) {
    const auto freed = std::make_shared<bool>(false);
    const auto note = [freed](void*) { *freed = true; };
    auto sum = comm::GradientCommunicator(communicator)
                   .start_all_reduce(
                       at::from_blob(memory.data(), {static_cast<std::int64_t>(memory.size())}, note, at::kFloat));
    report_failure_of([&] { communicator.barrier({.timeout = milliseconds(300), .name = ""}).wait(); });
    sum.reset();  // must neither block nor crash
    EXPECT_FALSE(*freed);
  }
  outside.barrier().wait();
  if (communicator.rank() == 1) report_failure_of([&] { communicator.barrier().wait(); });
});

const RankProgram one_leaves("one_leaves_over_mpi", [] {
  const auto communicator = over_mpi();
  // Messages that were sent before the rank exits still arrive.
  auto ones = at::ones({500'000});
  communicator.all_reduce(ones).wait();
  EXPECT_EQ(ones.sum().item<double>(), 500'000.0 * communicator.size());
  if (communicator.rank() == 1) return;
  report_failure_of([&] { communicator.all_reduce(at::ones({4})).wait(); });
});

const RankProgram receives_from_any("receives_from_any_over_mpi", [] {
  const auto communicator = over_mpi(std::chrono::seconds(30));
  if (communicator.rank() == 1) return;
  auto text = at::ones({4});
  report_failure_of([&] { communicator.receive_from_any(text).wait(); });
});

const RankProgram asks_for_mpi("asks_for_mpi", [] {
  report_failure_of([] { Communicator::connect(read_environment(), {.backend = "mpi"}); });
});
const RankProgram follows_the_variable("follows_the_variable", [] {
  report_failure_of([] {
    const auto communicator = Communicator::connect(read_environment());
    print_line("backend " + communicator.backend_name());
    EXPECT_EQ(Communicator::connect(read_environment(), {.backend = "tcp"}).backend_name(), "tcp");
  });
});

const RankProgram disagrees("disagrees_about_the_backend", [] {
  const auto environment = read_environment();
  report_failure_of([&] { Communicator::connect(environment, {.backend = environment.rank == 1 ? "tcp" : "auto"}); });
});

struct ProcessResult {
  int exit_code = -1;
  std::string output;
};

/// Runs `program` on `size` ranks of mpirun. A deadline ends all ranks.
ProcessResult under_mpirun(const RankProgram& program, int size, const std::string& variables = "") {
  const auto binary = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string command = "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ";
  // Open MPI needs these variables for root and for fewer cores than ranks. Other MPIs ignore the variables.
  command +=
      "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=400 ";
  command += std::string(program_variable) + "=" + program.name() + " " + variables;
  command += " timeout -k 5 420 " TUTTI_MPIRUN " -n " + std::to_string(size) + " " + binary + " 2>&1";
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen");
  ProcessResult result;
  std::array<char, 4096> buffer;
  while (const auto count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    result.output.append(buffer.data(), count);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

void expect_exit_success(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.output;
}
void expect_output(const std::string& output, const std::string& text) {
  EXPECT_NE(output.find(text), std::string::npos) << "expected: " << text << "\noutput:\n" << output;
}

class Mpi : public testing::Test {
  void SetUp() override {
    if (std::string(TUTTI_MPIRUN).empty()) GTEST_SKIP() << "the build found no MPI (libopenmpi-dev openmpi-bin)";
  }
};

TEST_F(Mpi, EveryCheckHoldsOnTwoProcesses) {
  expect_exit_success(under_mpirun(every_check, 2));
}
TEST_F(Mpi, EveryCheckHoldsOnThreeProcesses) {
  expect_exit_success(under_mpirun(every_check, 3));
}
TEST_F(Mpi, SharedMemoryStaysInsideNodesOfFourProcesses) {
  expect_exit_success(under_mpirun(composed, 4));
}
TEST_F(Mpi, GradientSumsOfTwoAndThreeProcessesHaveTheBitsOfTcp) {
  expect_exit_success(under_mpirun(sums, 2));
  expect_exit_success(under_mpirun(sums, 3));
}
TEST_F(Mpi, GroupsAreReleasedOnTwoProcesses) {
  expect_exit_success(under_mpirun(groups, 2));
}

TEST_F(Mpi, AWarningAndADeadlineNameTheAbsentRankOfThreeProcesses) {
  const auto result = under_mpirun(one_is_absent, 3);
  expect_exit_success(result);
  expect_output(result.output,
                "TimeoutError: barrier (operation 0): rank 1 did not enter the call within 12 s; ranks 0, 2 were "
                "waiting");
  expect_output(result.output, "barrier (operation 0, mpi_test.cpp:");
  const std::string warning = ") of a group of 3 has waited for 10 s for rank 1 (`tutti inspect` tells";
  expect_output(result.output, warning);
  EXPECT_EQ(result.output.find(warning), result.output.rfind(warning)) << "both waiting ranks log:\n" << result.output;
}
TEST_F(Mpi, AReceiveFromAnyRankEndsWhenTheOtherRankHasLeftOfTwoProcesses) {
  const auto result = under_mpirun(receives_from_any, 2);
  expect_exit_success(result);
  expect_output(result.output, "PeerError: receive (tag 0): every other rank exited or disconnected");
}
TEST_F(Mpi, ASumWithoutAWaiterKeepsItsMemoryOnTwoProcesses) {
  const auto result = under_mpirun(leaves_a_sum, 2);
  expect_exit_success(result);
  expect_output(result.output, "TimeoutError: barrier (operation 1): rank 1 did not enter the call within 300 ms");
  expect_output(result.output, "the other ranks timed out waiting for this rank (1) after 300 ms");
}
TEST_F(Mpi, ARankThatExitsNormallyIsNamedOnThreeProcesses) {
  const auto result = under_mpirun(one_leaves, 3);
  expect_exit_success(result);
  expect_output(result.output, "PeerError: all_reduce (operation 1): rank 1 disconnected");
}

TEST_F(Mpi, TheVariableSelectsTheBackendOnTwoProcesses) {
  const auto result = under_mpirun(follows_the_variable, 2, "TUTTI_BACKEND=mpi_only");
  expect_exit_success(result);
  expect_output(result.output, "backend mpi\n");
}
TEST_F(Mpi, WithoutMpirunItIsAUsageErrorOnBothProcesses) {
  for (const auto& rank : run_processes(asks_for_mpi, 2)) {
    EXPECT_EQ(rank.exit_code, 0) << rank.output;
    expect_output(rank.output,
                  "UsageError: The backend mpi cannot be used on rank 0: no mpirun or srun started this process");
    expect_output(rank.output, "run mpirun -n 2 PROGRAM");
  }
}
TEST_F(Mpi, TheStatusHasTheReason) {
  const auto statuses = backend_statuses();
  const auto mpi = std::ranges::find(statuses, "mpi", &BackendStatus::name);
  ASSERT_NE(mpi, statuses.end());
  EXPECT_FALSE(mpi->usable);
  expect_output(mpi->reason, "no mpirun or srun started this process");
}

TEST(MpiBackend, ThreeProcessesThatAskForDifferentBackendsAllThrow) {
  for (const auto& rank : run_processes(disagrees, 3)) {
    expect_output(rank.output, "UsageError: rank ");
    expect_output(rank.output, "all must ask for the same");
  }
}

TEST(MpiBackend, AnUnknownBackendInTheVariableIsNamed) {
  const auto ranks = run_processes(follows_the_variable, 1, {.variables = {{"TUTTI_BACKEND", "mip"}}});
  expect_output(ranks[0].output, "UsageError: TUTTI_BACKEND=mip: There is no backend 'mip'. Known: auto, tcp, mpi, ");
}

VariableLookup lookup_in(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

TEST(MpiBackend, RequiresAnMpiLauncher) {
  using comm::mpi_unavailable_reason;
  using Variables = std::map<std::string, std::string>;
  for (const Variables& good :
       {Variables{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
        Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}},
        Variables{{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}}, Variables{{"PMIX_RANK", "2"}}}) {
    EXPECT_EQ(mpi_unavailable_reason(lookup_in(good), 4), "") << good.begin()->first;
  }
  expect_output(mpi_unavailable_reason(lookup_in({}), 4), "no mpirun or srun started this process");
  // The environment of a batch script, and of a shell in the script.
  expect_output(mpi_unavailable_reason(lookup_in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}), 4),
                "no mpirun or srun");
  // mpirun -n 1 tutti launch -n 4
  expect_output(mpi_unavailable_reason(lookup_in({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}), 4),
                "OMPI_COMM_WORLD_SIZE is 1, but the job has 4 ranks");
}

TEST(MpiBackend, TagsAreDistinctAndInRange) {
  using comm::Phase;
  for (const int highest : {32767, (1 << 20) - 1, (1 << 23) + 5, 2147483647}) {
    const comm::MpiTags tags(highest);
    std::set<int> seen{tags.close()};
    const std::vector<std::uint64_t> operations{0, 1, 2, 17, 63};
    for (const auto operation : operations) {
      for (const auto phase : {Phase::small_all_gather, Phase::reduce_scatter, Phase::all_gather, Phase::data}) {
        seen.insert(tags.message({operation, phase}, 4096));
      }
    }
    EXPECT_EQ(seen.size(), operations.size() * 4 + 1) << highest;
    for (const auto phase : {Phase::small_all_gather, Phase::reduce_scatter, Phase::all_gather, Phase::data}) {
      EXPECT_NE(tags.message({0, phase}, 0), tags.close()) << highest;
    }
    EXPECT_NE(tags.message({3, Phase::data}, 4096), tags.message({3, Phase::data}, 100)) << highest;
    seen.insert(tags.message({~std::uint64_t{0}, Phase::data}, ~std::size_t{0}));
    for (const auto* name : {"job", "job/1-duplicate", "job/node0"}) seen.insert(tags.of_name(name));
    EXPECT_GE(*seen.begin(), 0) << highest;
    EXPECT_LE(*seen.rbegin(), highest);
  }
}

}  // namespace
}  // namespace tutti::test::mpi_test
