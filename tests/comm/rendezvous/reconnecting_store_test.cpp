// Connections that close and open again: in one process, and in a job of 8 processes.
#include "comm/rendezvous/reconnecting_store.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "support/ranks.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm::reconnecting_store_test {
namespace {

using std::chrono::milliseconds;

/// A store that counts connections.
struct Server {
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  int connections = 0;
  bool gone = false;

  ReconnectingStore::Connect connect() {
    return [this] {
      if (gone) throw std::runtime_error("connection refused");
      ++connections;
      return store;
    };
  }
};

TEST(ReconnectingStore, ConnectsAgainWithTheNextRequest) {
  Server server;
  ReconnectingStore store(server.store, server.connect());
  store.setTimeout(milliseconds(50));
  store.disconnect_if_idle(milliseconds(0));
  EXPECT_EQ(server.store.use_count(), 1U) << "the connection is still there";
  EXPECT_EQ(store.add("count", 2), 2);
  EXPECT_EQ(store.add("count", 1), 3);
  EXPECT_EQ(server.connections, 1);
  EXPECT_EQ(server.store->getTimeout(), milliseconds(50));
  store.disconnect_if_idle(std::chrono::hours(1));
  EXPECT_EQ(store.add("count", 1), 4);
  EXPECT_EQ(server.connections, 1) << "it is in use";
}

TEST(ReconnectingStore, ACopyConnectsSeparatelyWhenNeeded) {
  Server server;
  ReconnectingStore store(server.store, server.connect());
  const auto copy = store.clone();
  EXPECT_EQ(server.connections, 0);
  EXPECT_EQ(copy->add("count", 1), 1);
  EXPECT_EQ(server.connections, 1);
}

TEST(ReconnectingStore, AnInFlightRequestIsAnswered) {
  Server server;
  ReconnectingStore store(server.store, server.connect());
  auto value = std::async(std::launch::async, [&] { return store.get("word"); });
  while (server.store.use_count() < 3) std::this_thread::yield();  // the test's, the store's and the request's
  store.disconnect_if_idle(milliseconds(0));
  server.store->set("word", std::vector<std::uint8_t>{7});
  EXPECT_EQ(value.get(), std::vector<std::uint8_t>{7});
}

TEST(ReconnectingStore, ThrowsAfterTheServerExited) {
  Server server;
  ReconnectingStore store(server.store, server.connect());
  store.disconnect_if_idle(milliseconds(0));
  server.gone = true;
  EXPECT_THROW(store.add("count", 1), std::runtime_error);
  server.gone = false;
  EXPECT_EQ(store.add("count", 1), 1);
}

int open_sockets() {
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed_meanwhile;
    sockets += std::filesystem::read_symlink(entry.path(), closed_meanwhile).string().starts_with("socket:") ? 1 : 0;
  }
  return sockets;
}

const test::RankProgram counts_sockets("reconnecting_store_counts_sockets", [] {
  const auto communicator = Communicator::connect(read_environment());
  communicator.all_reduce(at::ones({4})).wait();
  // Rank 0 serves the store and may see disconnections late. Rank 0 keeps its connection and the listening socket.
  while (open_sockets() > 8) std::this_thread::yield();
  EXPECT_EQ(communicator.broadcast_object(std::string("still there"), 7), "still there");
  // A new channel does not use the store. Otherwise hundreds of ranks would reconnect at once.
  const auto before = open_sockets();
  communicator.duplicate("channel").barrier().wait();
  // Rank 0 may already serve ranks that are at the next step.
  if (communicator.rank() != 0) {
    EXPECT_LE(open_sockets(), before);
  }
  if (communicator.rank() == 5) communicator.send(at::ones({2}), 6).wait();
  if (communicator.rank() == 6) {
    const auto received = at::zeros({2});
    communicator.receive(received, 5).wait();
    EXPECT_EQ(received[1].item<float>(), 1.0F);
  }
  communicator.barrier().wait();
});

TEST(ReconnectingStore, RanksOfOneMachineKeepNoIdleConnection) {
  test::expect_success(test::run_processes(counts_sockets, 8));
}

}  // namespace
}  // namespace tutti::comm::reconnecting_store_test
