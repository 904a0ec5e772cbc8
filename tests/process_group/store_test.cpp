// Ranks: 2 and 3 as threads and as processes. Groups over c10d stores.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/rendezvous/node_id.h"
#include "process_group/groups.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tutti/core/error.h"

namespace tutti::test::store_test {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

StorePtr launchers_store() {
  const auto environment = read_environment();
  c10d::TCPStoreOptions options;
  options.port = environment.master_port;
  options.isServer = environment.rank == 0;
  return c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
}

void expect_sum(const Communicator& communicator) {
  for (const std::int64_t elements : {3, 200'000}) {
    auto tensor = at::full({elements}, communicator.rank() + 1.0);
    communicator.all_reduce(tensor).wait();
    const int size = communicator.size();
    EXPECT_EQ(tensor[elements - 1].item<double>(), size * (size + 1) / 2.0);
  }
}

const RankProgram over_a_tcp_store("over_a_tcp_store", [] {
  const auto store = launchers_store();
  const auto environment = read_environment();
  const auto communicator = Communicator::connect(store, environment.rank, environment.world_size);
  EXPECT_EQ(communicator.backend_name(), "shared memory + tcp");
  EXPECT_EQ(communicator.topology().num_nodes, 1);
  EXPECT_EQ(communicator.topology().local_rank, environment.rank);
  expect_sum(communicator);
  const auto by_messages = Communicator::connect(store, environment.rank, environment.world_size, {.backend = "tcp"});
  expect_sum(by_messages);
  communicator.barrier().wait();
});

const RankProgram over_a_file("over_a_file", [] {
  const auto environment = read_environment();
  const auto store = c10::make_intrusive<c10d::FileStore>(std::getenv("STORE_FILE"), environment.world_size);
  for (const char* backend : {"auto", "tcp"}) {
    expect_sum(Communicator::connect(store, environment.rank, environment.world_size, {.backend = backend}));
  }
});

TEST(OverAStore, TcpOnProcesses) {
  expect_success(run_processes(over_a_tcp_store, 3));
}

TEST(OverAStore, AFileOnProcesses) {
  const TemporaryFolder folder;
  expect_success(run_processes(over_a_file, 2, {.variables = {{"STORE_FILE", (folder.path() / "store").string()}}}));
}

// Two groups at the same time, one of them with fewer ranks, and a second connect under the same names.
TEST(OverAStore, GroupsDoNotCollide) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  constexpr std::chrono::milliseconds timeout = std::chrono::minutes(20);
  store->setTimeout(timeout);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&store, rank] {
      const auto prefixed = [&](const char* name) -> StorePtr {
        return c10::make_intrusive<c10d::PrefixStore>(name, store);
      };
      const auto all = Communicator::connect(prefixed("all"), rank, 3);
      if (rank > 0) expect_sum(Communicator::connect(prefixed("some"), rank - 1, 2));
      expect_sum(all);
      expect_sum(Communicator::connect(prefixed("all"), rank, 3));
      all.barrier().wait();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store->getTimeout(), timeout);
}

TEST(OverAStore, ContradictionsThrowOnAllRanks) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&store, rank] {
      const auto message = message_of<UsageError>(
          [&] { Communicator::connect(store, rank, 2, {.backend = rank == 0 ? "tcp" : "shared_memory"}); });
      EXPECT_NE(message.find("all must ask for the same"), std::string::npos) << message;
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(OverAStore, WrongArguments) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(message_of<UsageError>([] { Communicator::connect(StorePtr(), 0, 1); }),
            "Communicator::connect: the store is null.");
  for (const auto& [rank, size] : {std::pair{2, 2}, std::pair{-1, 2}, std::pair{0, 0}}) {
    EXPECT_NE(message_of<UsageError>([&, rank = rank, size = size] {
                Communicator::connect(store, rank, size);
              }).find("ranks count from 0 to size - 1"),
              std::string::npos);
  }
  EXPECT_EQ(message_of<TimeoutError>([&] {
              Communicator::connect(store, 0, 2, {.connect_timeout = std::chrono::milliseconds(50)});
            }).substr(0, 34),
            "rank 1 did not join within 50 ms; ");
}

TEST(NodeId, CountsNodesInTheOrderOfTheirFirstRanks) {
  EXPECT_EQ(comm::number_nodes({"b", "a", "b", "c", "a"}), (std::vector<int>{0, 1, 0, 2, 1}));
  EXPECT_EQ(comm::this_node_id(), comm::this_node_id());
}

}  // namespace
}  // namespace tutti::test::store_test
