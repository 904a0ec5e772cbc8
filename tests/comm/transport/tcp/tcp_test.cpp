// Ranks: 2, 3 and 16 processes over TCP.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <thread>

#include "comm/collective_checks.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tutti/core/environment.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::test::tcp_test {
namespace {

const RankProgram every_check("tcp_every_check", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  EXPECT_EQ(communicator.backend_name(), "tcp");
  check_all(communicator);
});

const RankProgram two_nodes("tcp_two_nodes", [] {
  const auto environment = read_environment();
  const auto communicator = Communicator::connect(environment);
  const auto& topology = communicator.topology();
  EXPECT_EQ(topology.node_rank, environment.node_rank);
  EXPECT_EQ(topology.num_nodes, 2);
  EXPECT_EQ(topology.local_rank, environment.local_rank);
  EXPECT_EQ(topology.local_world_size, 2);
  EXPECT_EQ(topology.node_of_rank, (std::vector<int>{0, 0, 1, 1}));
  const auto node = communicator.split(topology.node_rank);
  ASSERT_TRUE(node.has_value());
  EXPECT_EQ(node->topology().num_nodes, 1);
  EXPECT_EQ(node->topology().local_world_size, 2);
});

// Returns without waiting for the operations that it started.
const RankProgram leaves_work_behind("tcp_leaves_work_behind", [] {
  const auto communicator = Communicator::connect(read_environment());
  check_unwaited(communicator);
});

constexpr const char* ended_variable = "TUTTI_TEST_ENDED";

/// What a continuation writes to the file of that name.
constexpr const char* continued = "continued";

// A process that does not wait for its threads would exit in this time. A process that waits still runs.
constexpr auto time_of_an_exit = std::chrono::milliseconds(300);

void wait_until_ended() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!std::filesystem::exists(std::getenv(ended_variable))) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(time_of_an_exit);
}

void write_when_ended() {
  std::atexit([] { std::ofstream(std::getenv(ended_variable)) << "ended"; });
}

// Rank 0's main() has returned before rank 1 enters the all-reduce for which rank 0's thread waits.
const RankProgram ends_while_a_thread_waits("tcp_ends_while_a_thread_waits", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  auto copy = communicator.duplicate("copy");
  const auto add_up = [copy] { return copy.all_reduce(at::ones({4})); };
  if (communicator.rank() == 0) {
    add_up();
    comm::GradientCommunicator(copy).submit([copy] {});  // the last reference
    return write_when_ended();
  }
  wait_until_ended();
  add_up().wait();
});

// Rank 0's main() has returned before the continuation of a message ends, which has the last reference.
const RankProgram ends_during_a_continuation("tcp_ends_during_a_continuation", [] {
  const at::Tensor message = at::ones({1});
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  communicator.barrier().wait();
  if (communicator.rank() == 1) {
    communicator.receive(message, 0).wait();
    communicator.send(message, 0).wait();
    communicator.barrier().wait();
    return;
  }
  const auto begun = std::make_shared<std::promise<void>>();
  communicator.receive(message, 1).then([communicator, begun] {
    begun->set_value();
    wait_until_ended();
    communicator.barrier().wait();
    std::ofstream(std::getenv(ended_variable)) << continued;
  });
  communicator.send(message, 1).wait();  // rank 1 sends after it, so another thread runs the continuation
  begun->get_future().wait();
  write_when_ended();
});

// Connects twice at once, and again after both communicators are destroyed.
const RankProgram connects_again("tcp_connects_again", [] {
  for (int i = 0; i < 2; ++i) {
    const auto first = Communicator::connect(read_environment());
    const auto second = Communicator::connect(read_environment());
    second.barrier().wait();
    check_objects(first);
    check_objects(second);
    first.barrier().wait();
  }
});

int sockets_of_this_process() {
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (std::filesystem::read_symlink(entry, ignored).string().starts_with("socket:")) ++sockets;
  }
  return sockets;
}

// Barriers, all-reduces and small all-gathers connect each rank to few peers. all_to_all connects all ranks when it is
// called.
const RankProgram connects_to_few_peers("tcp_connects_to_few_peers", [] {
  const int before = sockets_of_this_process();
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  const int size = communicator.size();
  communicator.barrier().wait();
  const auto ranks = at::full({1000}, communicator.rank(), at::kFloat);
  communicator.all_reduce(ranks).wait();
  EXPECT_TRUE(at::equal(ranks, at::full({1000}, size * (size - 1) / 2, at::kFloat)));
  const auto all_ranks = at::empty({size}, at::kFloat);
  communicator.all_gather(all_ranks, at::full({1}, communicator.rank(), at::kFloat)).wait();
  EXPECT_TRUE(at::equal(all_ranks, at::arange(size, at::kFloat)));
  // 7 peers, the listening socket, and one to the coordinator, which rank 0 also runs.
  if (communicator.rank() != 0) {
    EXPECT_LE(sockets_of_this_process() - before, 7 + 1 + 5);
  }
  communicator.all_to_all(all_ranks, at::full({size}, communicator.rank(), at::kFloat)).wait();
  EXPECT_TRUE(at::equal(all_ranks, at::arange(size, at::kFloat)));
  check_objects(communicator);
});

// On one node, where messages are the only use of TCP.
const RankProgram sends_first("tcp_sends_first", [] {
  const auto communicator = Communicator::connect(read_environment(), {.timeout = std::chrono::seconds(10)});
  EXPECT_EQ(communicator.backend_name(), "shared memory + tcp");
  at::Tensor message = at::full({3}, static_cast<float>(communicator.rank()));
  if (communicator.rank() == 0) communicator.send(message, 1).wait();
  communicator.barrier().wait();
  if (communicator.rank() == 1) communicator.receive(message, 0).wait();
  EXPECT_TRUE(at::equal(message, at::zeros({3})));
});

TEST(Tcp, ASendEndsBeforeThePeersFirstCallForMessages) {
  expect_success(run_processes(sends_first, 2));
}
TEST(Tcp, ManyRanksConnectWhereBytesFlow) {
  expect_success(run_processes(connects_to_few_peers, 16));
}

TEST(Tcp, EveryCheckHoldsOnTwoProcesses) {
  expect_success(run_processes(every_check, 2));
}
TEST(Tcp, EveryCheckHoldsOnThreeProcesses) {
  expect_success(run_processes(every_check, 3));
}
TEST(Tcp, TopologyComesFromTheEnvironment) {
  expect_success(run_processes(two_nodes, 4, {.num_nodes = 2}));
}
TEST(Tcp, AProcessMayConnectMoreThanOnce) {
  expect_success(run_processes(connects_again, 2));
}
// As under torchrun, the launcher serves the store, and restarted ranks find the keys of the previous attempt.
TEST(Tcp, TheLaunchersStoreIsUsedAcrossRestarts) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const ProcessOptions under_an_agent{.variables = {{"MASTER_PORT", std::to_string(store->getPort())},
                                                      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                      {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)}}};
    expect_success(run_processes(connects_again, 2, under_an_agent));
  }
}

TEST(Tcp, AProcessEndsAfterItsThreads) {
  const TemporaryFolder folder;
  expect_success(
      run_processes(ends_while_a_thread_waits, 2, {.variables = {{ended_variable, folder.path() / "ended"}}}));
}

TEST(Tcp, AProcessEndsAfterItsContinuations) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "ended";
  expect_success(run_processes(ends_during_a_continuation, 2, {.variables = {{ended_variable, path}}}));
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, continued);
}

TEST(Tcp, UnwaitedWorkIsCompleted) {
  expect_success(run_processes(leaves_work_behind, 2));
}

}  // namespace
}  // namespace tutti::test::tcp_test
