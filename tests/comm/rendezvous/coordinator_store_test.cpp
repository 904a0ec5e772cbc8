// Ranks: 2 clients of a coordinator in one process.
#include "comm/rendezvous/coordinator_store.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <thread>

#include "coordinator/server.h"
#include "core/socket.h"

namespace tutti::comm::coordinator_store_test {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::uint8_t>;

class Job {
 public:
  c10::intrusive_ptr<CoordinatorStore> store(int rank, std::chrono::milliseconds timeout = 60s) {
    return c10::make_intrusive<CoordinatorStore>(rank == 0 ? first_ : second_, timeout);
  }

 private:
  std::shared_ptr<coordinator::Client> client(int rank) {
    const coordinator::ClientOptions options{.port = server_.port(),
                                             .member = {.rank = rank, .world_size = 2},
                                             .connect_timeout = 60s,
                                             .timeouts = {.heartbeat = 60s}};
    return std::make_shared<coordinator::Client>(options, coordinator::ClientEvents{});
  }

  coordinator::Server server_{
      {.listening = listen_tcp(loopback_host).socket, .world_size = 2, .timeouts = {.heartbeat = 60s}}};
  std::shared_ptr<coordinator::Client> first_ = client(0);
  std::shared_ptr<coordinator::Client> second_ = client(1);
};

TEST(CoordinatorStore, KeepsBytes) {
  Job job;
  const Bytes bytes{0, 255, 10};
  job.store(0)->set("key", bytes);
  EXPECT_EQ(job.store(1)->get("key"), bytes);
  EXPECT_TRUE(job.store(1)->check({"key"}));
  EXPECT_FALSE(job.store(1)->check({"key", "absent"}));
  job.store(1)->append("key", {7});
  EXPECT_EQ(job.store(0)->get("key"), (Bytes{0, 255, 10, 7}));
  EXPECT_TRUE(job.store(0)->deleteKey("key"));
  EXPECT_FALSE(job.store(0)->deleteKey("key"));
}

TEST(CoordinatorStore, AddsAndCompares) {
  Job job;
  EXPECT_EQ(job.store(0)->add("count", 2), 2);
  EXPECT_EQ(job.store(1)->add("count", 3), 5);
  EXPECT_EQ(job.store(0)->get_to_str("count"), "5");
  const auto store = job.store(0);
  EXPECT_EQ(static_cast<c10d::Store&>(*store).compareSet("key", std::string(), std::string("a")), "a");
  EXPECT_EQ(static_cast<c10d::Store&>(*store).compareSet("key", std::string(), std::string("b")), "a");
}

TEST(CoordinatorStore, ReadsAndWritesSeveralKeys) {
  Job job;
  job.store(0)->multiSet({"a", "b"}, {{1}, {2}});
  EXPECT_EQ(job.store(1)->multiGet({"b", "a"}), (std::vector<Bytes>{{2}, {1}}));
}

// A thread waits on the store that another thread uses.
TEST(CoordinatorStore, ARequestThatWaitsBlocksNoOtherOne) {
  Job job;
  const auto store = job.store(1);
  std::thread waits([&] { store->wait({"late"}); });
  store->set("other", Bytes{1});
  EXPECT_EQ(store->get("other"), Bytes{1});
  job.store(0)->set("late", Bytes{1});
  waits.join();
}

TEST(CoordinatorStore, AWaitEndsAtItsTimeout) {
  Job job;
  EXPECT_ANY_THROW(job.store(0)->wait({"absent"}, 10ms));
  EXPECT_ANY_THROW(job.store(0, 10ms)->get("absent"));
}

TEST(CoordinatorStore, WorksUnderAPrefix) {
  Job job;
  const auto prefixed = c10::make_intrusive<c10d::PrefixStore>("group", job.store(0)->clone());
  prefixed->set("key", Bytes{3});
  EXPECT_EQ(job.store(1)->get("group/key"), Bytes{3});
}

}  // namespace
}  // namespace tutti::comm::coordinator_store_test
