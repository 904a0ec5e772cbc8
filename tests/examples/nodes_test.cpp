// Two ranks on each of two and three network namespaces, compared with the same number of ranks on one node. The
// reduction tree does not depend on the nodes, so the bits are equal. Also tests a namespace that loses its link.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include "examples/programs.h"
#include "support/listening.h"
#include "support/rank_program.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

namespace tutti::test::nodes_test {
namespace {

void expect_same_as_one_node(int nodes, const std::string& program, const std::string& result) {
  const Ran apart = run("TORCH_CPP_LOG_LEVEL=ERROR " NODES_SCRIPT " " + std::to_string(nodes) +
                        " 1gbit 2 " TUTTI_COMMAND " " + program + " 2>&1");
  if (apart.exit_code == nodes_impossible) GTEST_SKIP() << apart.output;
  ASSERT_EQ(apart.exit_code, 0) << apart.output;
  const Ran together = run(TUTTI_COMMAND " launch -n " + std::to_string(2 * nodes) + " -- " + program + " 2>&1");
  ASSERT_EQ(together.exit_code, 0) << together.output;
  EXPECT_NE(from_last(result, apart.output), "") << apart.output;
  EXPECT_EQ(from_last(result, apart.output), from_last(result, together.output));
}

class Nodes : public testing::TestWithParam<int> {};

TEST_P(Nodes, DdpEndsWithTheDigestOfOneNode) {
  expect_same_as_one_node(GetParam(), DDP_PROGRAM " --distributed --epochs 2 --batch_size 4 --data_size 48", "digest ");
}

TEST_P(Nodes, GptEndsWithTheLossOfOneNode) {
  expect_same_as_one_node(GetParam(),
                          GPT_PROGRAM
                          " --steps 5 --accumulation 2 --batch-size 1 --context 16 --width 64 --layers 2 --heads 2 "
                          "--sample-bytes 8 --data " SOME_TEXT,
                          "held-out loss ");
}

// The last rank cuts the link of its node, so no packet arrives any more, not even the end of a connection. All ranks
// then sum until that fails. Each rank prints its error and how long it waited.
const RankProgram loses_its_link("loses_its_link", [] {
  // Timeouts in case the failure is not detected; their message is different.
  constexpr std::chrono::seconds late(60);
  const auto communicator = Communicator::connect(read_environment(), {.timeout = late, .connect_timeout = late});
  const bool cuts = communicator.rank() == communicator.size() - 1;
  auto last = std::chrono::steady_clock::now();
  try {
    communicator.barrier().wait();  // all are connected; the last rank to leave the barrier may find the link cut
    if (cuts) {
      ASSERT_EQ(std::system("ip link set \"$GLOO_SOCKET_IFNAME\" down"), 0);
    }
    for (;;) {
      communicator.all_reduce(at::ones({4})).wait();
      last = std::chrono::steady_clock::now();
    }
  } catch (const TimeoutError& failure) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - last);
    std::cout << "rank " + std::to_string(communicator.rank()) + " after " + std::to_string(waited.count()) +
                     " ms: " + failure.what() + "\n"
              << std::flush;
  }
});

TEST_P(Nodes, ANodeWithoutItsLinkIsNamedBeforeTheTimeout) {
  const Ran apart = run("TORCH_CPP_LOG_LEVEL=ERROR TUTTI_HEARTBEAT_TIMEOUT=2 " NODES_SCRIPT " " +
                        std::to_string(GetParam()) + " 1gbit 2 " TUTTI_COMMAND " env " + std::string(program_variable) +
                        "=loses_its_link \"$(readlink /proc/" + std::to_string(::getpid()) + "/exe)\" 2>&1");
  if (apart.exit_code == nodes_impossible) GTEST_SKIP() << apart.output;
  EXPECT_EQ(apart.exit_code, 0) << apart.output;
  const int ranks = 2 * GetParam();
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string line = from_last("rank " + std::to_string(rank) + " after ", apart.output);
    EXPECT_NE(line.find("missed heartbeats for"), std::string::npos) << "rank " << rank << ":\n" << apart.output;
  }
}

// The last rank's node drops the packets of the connections between ranks, and not those to the coordinator.
const RankProgram loses_its_peers("loses_its_peers", [] {
  constexpr std::chrono::seconds late(60);
  const auto communicator = Communicator::connect(read_environment(), {.timeout = late, .connect_timeout = late});
  const bool cuts = communicator.rank() == communicator.size() - 1;
  try {
    communicator.all_reduce(at::ones({4})).wait();
    if (cuts) {
      const std::string rule = "ip rule add ipproto tcp blackhole ";
      ASSERT_EQ(std::system((rule + "sport $TUTTI_PORT_RANGE && " + rule + "dport $TUTTI_PORT_RANGE").c_str()), 0);
    }
    for (;;) communicator.all_reduce(at::ones({4})).wait();
  } catch (const PeerError& failure) {
    std::cout << "rank " + std::to_string(communicator.rank()) + " lost: " + failure.what() + "\n" << std::flush;
  }
});

TEST_P(Nodes, ANetworkThatDropsTheConnectionsBetweenRanksIsNamed) {
  const Ran apart =
      run("TORCH_CPP_LOG_LEVEL=ERROR TUTTI_HEARTBEAT_TIMEOUT=2 TUTTI_PORT_RANGE=31000-31100 " NODES_SCRIPT " " +
          std::to_string(GetParam()) + " 1gbit 2 " TUTTI_COMMAND " env " + std::string(program_variable) +
          "=loses_its_peers \"$(readlink /proc/" + std::to_string(::getpid()) + "/exe)\" 2>&1");
  if (apart.exit_code == nodes_impossible) GTEST_SKIP() << apart.output;
  EXPECT_EQ(apart.exit_code, 0) << apart.output;
  for (int rank = 0; rank < 2 * GetParam(); ++rank) {
    EXPECT_NE(from_last("rank " + std::to_string(rank) + " lost: ", apart.output), "") << apart.output;
  }
  EXPECT_NE(apart.output.find("acknowledges nothing: check the network"), std::string::npos) << apart.output;
}

// The secret is in a file, as with Slurm and Kubernetes.
TEST_P(Nodes, WithASecretDdpEndsWithTheDigestOfOneNode) {
  const TemporaryFolder folder;
  const auto file = (folder.path() / "secret").string();
  std::ofstream(file) << "the secret of this job\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  ::setenv("TUTTI_JOB_SECRET_FILE", file.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  expect_same_as_one_node(GetParam(), DDP_PROGRAM " --distributed --epochs 2 --batch_size 4 --data_size 48", "digest ");
  ::unsetenv("TUTTI_JOB_SECRET_FILE");  // NOLINT(concurrency-mt-unsafe)
}

// Prints its listening addresses while every listener is open: the coordinator, messages.
const RankProgram says_where_it_listens("says_where_it_listens", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  communicator.all_reduce(at::ones({4})).wait();
  const auto next = (communicator.rank() + 1) % communicator.size();
  const auto previous = (communicator.rank() + communicator.size() - 1) % communicator.size();
  const auto request = communicator.send(at::ones({4}), next);
  communicator.receive(at::ones({4}), previous).wait();
  std::string line = "rank " + std::to_string(communicator.rank()) + " listens at";
  for (const auto& address : listening_addresses()) line += " " + address;
  std::cout << line + " alone\n" << std::flush;
  request.wait();
  communicator.barrier().wait();
});

TEST_P(Nodes, ListenAtSharedAddressesOnly) {
  for (const std::string secret : {"", "TUTTI_JOB_SECRET='the secret of this job' "}) {
    const Ran apart = run(secret + "TORCH_CPP_LOG_LEVEL=ERROR " NODES_SCRIPT " " + std::to_string(GetParam()) +
                          " 1gbit 2 " TUTTI_COMMAND " env " + std::string(program_variable) +
                          "=says_where_it_listens \"$(readlink /proc/" + std::to_string(::getpid()) + "/exe)\" 2>&1");
    if (apart.exit_code == nodes_impossible) GTEST_SKIP() << apart.output;
    EXPECT_EQ(apart.exit_code, 0) << apart.output;
    for (int rank = 0; rank < 2 * GetParam(); ++rank) {
      std::istringstream words(from_last("rank " + std::to_string(rank) + " listens at ", apart.output));
      const std::string own = "10.77.0." + std::to_string(rank / 2 + 1);  // nodes.sh
      std::multiset<std::string> addresses{std::istream_iterator<std::string>(words), {}};
      for (const char* word : {"rank", "listens", "at", "alone"}) EXPECT_EQ(addresses.erase(word), 1U) << apart.output;
      addresses.erase(std::to_string(rank));
      EXPECT_GE(addresses.count(own), rank == 0 ? 2U : 1U) << apart.output;  // messages, the coordinator
      EXPECT_EQ(addresses.count(own), addresses.size()) << apart.output;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TwoAndThree, Nodes, testing::Values(2, 3));

}  // namespace
}  // namespace tutti::test::nodes_test
