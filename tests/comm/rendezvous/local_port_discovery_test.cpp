// Jobs on one node whose launcher gives no address: unit tests on one process, jobs of 2 and 3 processes.
#include "comm/rendezvous/local_port_discovery.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "core/launchers.h"
#include "support/ranks.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

namespace tutti::comm::local_port_discovery_test {
namespace {

using namespace std::chrono_literals;
using test::run_processes;

/// A job name that no other test run on this machine uses.
std::string test_job() {
  return "test-" + std::to_string(::getpid());
}

TEST(LocalPortDiscovery, AnswersEachRankOnce) {
  const PortServer server(test_job(), 4321, 3);
  EXPECT_EQ(query_port(test_job(), 1, 10s), 4321);
  EXPECT_EQ(query_port(test_job(), 2, 10s), 4321);
  EXPECT_THROW(query_port(test_job(), 1, 1ms), TimeoutError);  // a second query belongs to a later connect
  EXPECT_THROW(query_port(test_job(), 3, 1ms), TimeoutError);  // the job has no rank 3
}

TEST(LocalPortDiscovery, JobsAreIndependent) {
  const std::string long_name(200, 'x');
  const PortServer first(long_name + "a", 1, 2);
  const PortServer second(long_name + "b", 2, 2);
  EXPECT_EQ(query_port(long_name + "b", 1, 10s), 2);
  EXPECT_EQ(query_port(long_name + "a", 1, 10s), 1);
  EXPECT_THROW(PortServer(long_name + "a", 3, 2), UsageError);
}

TEST(LocalPortDiscovery, LeavesNothingBehind) {
  for (int time = 0; time < 3; ++time) const PortServer server(test_job(), 1, 2);
  try {
    query_port(test_job(), 1, 1ms);
    ADD_FAILURE() << "a process answered";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.ranks(), std::vector<int>{0});
    EXPECT_NE(std::string(error.what()).find(test_job()), std::string::npos) << error.what();
  }
}

TEST(LocalPortDiscovery, ListensOnAFreePort) {
  const auto first = listen_on_loopback();
  const auto second = listen_on_loopback();
  EXPECT_NE(first.port, second.port);
  EXPECT_NE(first.port, 0);
  ::close(first.descriptor);
  ::close(second.descriptor);
}

/// The environment of this rank as mpirun would give it: a name for the job, no port.
Environment environment_without_port() {
  auto environment = read_environment();
  environment.master_addr = std::string(local_store_scheme) + "test-" + std::to_string(environment.master_port);
  environment.master_port = 0;
  environment.master_listen_fd = std::nullopt;
  return environment;
}

const test::RankProgram connects_twice("local_port_discovery_connects_twice", [] {
  for (int time = 0; time < 3; ++time) {
    const auto communicator = Communicator::connect(environment_without_port());
    const auto sum = at::full({5}, communicator.rank() + 1.0F);
    communicator.all_reduce(sum).wait();
    EXPECT_EQ(sum[0].item<float>(), communicator.size() == 2 ? 3.0F : 6.0F);
  }
});

TEST(LocalPortDiscovery, RanksFindRankZeroRepeatedly) {
  test::expect_success(run_processes(connects_twice, 2));
  test::expect_success(run_processes(connects_twice, 3));
}

const test::RankProgram lacks_rank_zero("local_port_discovery_lacks_rank_zero", [] {
  try {
    Communicator::connect(environment_without_port(), {.connect_timeout = 100ms});
    ADD_FAILURE() << "connected";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.ranks(), std::vector<int>{0});
  }
});

TEST(LocalPortDiscovery, NamesAnAbsentRankZero) {
  const auto results = run_processes(lacks_rank_zero, 2, {.absent = {0}});
  EXPECT_EQ(results[1].exit_code, 0) << results[1].output;
}

const test::RankProgram lacks_rank_one("local_port_discovery_lacks_rank_one", [] {
  try {
    Communicator::connect(environment_without_port(), {.connect_timeout = 100ms});
    ADD_FAILURE() << "connected";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.ranks(), std::vector<int>{1});
  }
});

TEST(LocalPortDiscovery, NamesAbsentRanks) {
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
}  // namespace tutti::comm::local_port_discovery_test
