// Jobs on one node whose launcher gives no address. Ranks: 2 and 3 processes.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <string>

#include "core/launchers.h"
#include "core/socket.h"
#include "support/ranks.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

namespace tutti::comm::local_job_test {
namespace {

using namespace std::chrono_literals;
using test::run_processes;

/// The environment of this rank as mpirun would give it: a name for the job, no port.
Environment environment_without_port(const std::string& prefix = "test-") {
  auto environment = read_environment();
  environment.master_addr = std::string(local_coordinator_scheme) + prefix + std::to_string(environment.master_port);
  environment.master_port = 0;
  return environment;
}

const test::RankProgram connects_twice("local_job_connects_twice", [] {
  for (int time = 0; time < 3; ++time) {
    const auto communicator = Communicator::connect(environment_without_port());
    const auto sum = at::full({5}, communicator.rank() + 1.0F);
    communicator.all_reduce(sum).wait();
    EXPECT_EQ(sum[0].item<float>(), communicator.size() == 2 ? 3.0F : 6.0F);
  }
});

TEST(LocalJob, RanksFindRankZeroRepeatedly) {
  test::expect_success(run_processes(connects_twice, 2));
  test::expect_success(run_processes(connects_twice, 3));
}

// The name of a socket has at most 107 bytes.
const test::RankProgram has_a_long_name("local_job_has_a_long_name", [] {
  const auto communicator = Communicator::connect(environment_without_port(std::string(200, 'x')));
  communicator.barrier().wait();
});

TEST(LocalJob, MayHaveALongName) {
  test::RankProcesses first(has_a_long_name, 2);
  test::RankProcesses second(has_a_long_name, 2);  // another job: its name differs behind the 200th character
  test::expect_success(first.wait());
  test::expect_success(second.wait());
}

// Two jobs of one name at the same time.
const test::RankProgram finds_its_name_in_use("local_job_finds_its_name_in_use", [] {
  auto environment = environment_without_port();
  environment.master_addr = std::string(local_coordinator_scheme) + "held-" + std::to_string(::getppid());
  try {
    Communicator::connect(environment, {.connect_timeout = 100ms});
    ADD_FAILURE() << "connected";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("another job of that name runs on this node"), std::string::npos)
        << error.what();
  }
});

TEST(LocalJob, RefusesANameInUse) {
  const auto name = "tutti/" + std::to_string(::geteuid()) + "/held-" + std::to_string(::getpid());
  const auto held = listen_local(name);
  const auto results = run_processes(finds_its_name_in_use, 2, {.absent = {1}});
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
}

const test::RankProgram lacks_rank_zero("local_job_lacks_rank_zero", [] {
  try {
    Communicator::connect(environment_without_port(), {.connect_timeout = 100ms});
    ADD_FAILURE() << "connected";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.ranks(), std::vector<int>{0});
  }
});

TEST(LocalJob, NamesAnAbsentRankZero) {
  const auto results = run_processes(lacks_rank_zero, 2, {.absent = {0}});
  EXPECT_EQ(results[1].exit_code, 0) << results[1].output;
}

const test::RankProgram lacks_rank_one("local_job_lacks_rank_one", [] {
  try {
    Communicator::connect(environment_without_port(), {.connect_timeout = 100ms});
    ADD_FAILURE() << "connected";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.ranks(), std::vector<int>{1});
  }
});

TEST(LocalJob, NamesAbsentRanks) {
  const auto results = run_processes(lacks_rank_one, 2, {.absent = {1}});
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
}

const test::RankProgram contradicts("contradicting_nodes", [] {
  auto environment = read_environment();
  if (environment.rank == 2) environment.local_world_size = 1;
  try {
    Communicator::connect(environment);
    ADD_FAILURE() << "connected";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 2 was told that its node holds 1 ranks, but 3 report that node"),
              std::string::npos)
        << error.what();
  }
});

TEST(Connect, RefusesContradictingNodes) {
  test::expect_success(run_processes(contradicts, 3));
}

}  // namespace
}  // namespace tutti::comm::local_job_test
