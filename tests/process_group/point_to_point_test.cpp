// Ranks: 2 and 3 as threads, 2 and 3 as processes. Point-to-point messages.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <future>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "process_group/groups.h"
#include "support/ranks.h"
#include "tutti/core/error.h"

namespace tutti::test::point_to_point_test {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t small = 3;
constexpr std::int64_t large = 3'000'000;  // larger than socket buffers

at::Tensor message(int from, int tag, std::int64_t elements) {
  return at::arange(elements, at::kFloat).remainder(1000) + 100.0 * from + tag;
}

void expect_equal(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_TRUE(at::equal(found, expected)) << found.flatten().slice(0, 0, 8);
}

c10::intrusive_ptr<c10d::Work> send(ProcessGroupTutti& group, const at::Tensor& tensor, int to, int tag = 0) {
  Tensors tensors{tensor};
  return group.send(tensors, to, tag);
}

c10::intrusive_ptr<c10d::Work> receive(ProcessGroupTutti& group, const at::Tensor& tensor, int from, int tag = 0) {
  Tensors tensors{tensor};
  return group.recv(tensors, from, tag);
}

// Each rank posts its receives before its sends, so no rank blocks another.
TEST(PointToPoint, CrossingMessages) {
  run_everywhere([](ProcessGroupTutti& group) {
    const int rank = group.getRank();
    const int size = group.getSize();
    for (const auto elements : {std::int64_t{0}, small, large}) {
      std::vector<at::Tensor> received(static_cast<std::size_t>(size));
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        received[peer] = at::zeros({elements});
        works.push_back(receive(group, received[peer], peer));
      }
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) works.push_back(send(group, message(rank, 0, elements), peer));
      }
      for (const auto& work : works) work->wait();
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) expect_equal(received[peer], message(peer, 0, elements));
      }
    }
  });
}

// Messages match by tag in any order; messages with the same tag arrive in the order of the sends.
TEST(PointToPoint, TagsAreDistinguished) {
  run_groups(2, [](ProcessGroupTutti& group) {
    constexpr int far_tag = 65536;  // its lower 16 bits equal tag 0
    if (group.getRank() == 0) {
      send(group, message(0, 0, large), 1, far_tag)->wait();
      send(group, message(0, 1, small), 1, 0)->wait();
      send(group, message(0, 2, small), 1, 0)->wait();
      return;
    }
    auto first = at::zeros({small});
    auto second = at::zeros({small});
    auto far = at::zeros({large});
    receive(group, first, 0)->wait();
    receive(group, second, 0)->wait();
    receive(group, far, 0, far_tag)->wait();
    expect_equal(first, message(0, 1, small));
    expect_equal(second, message(0, 2, small));
    expect_equal(far, message(0, 0, large));
  });
}

TEST(PointToPoint, APendingReceiveDoesNotBlockCollectives) {
  run_everywhere([](ProcessGroupTutti& group) {
    if (group.getSize() == 1) return;
    const bool receives = group.getRank() == 0;
    auto received = at::zeros({2, small}).t();  // strided
    c10::intrusive_ptr<c10d::Work> work;
    if (receives) work = receive(group, received, 1, 7);
    Tensors summed{at::ones({200'000})};
    group.allreduce(summed, {})->wait();
    group.barrier({})->wait();
    EXPECT_FALSE(work && work->isCompleted());
    group.barrier({})->wait();
    if (group.getRank() == 1) work = send(group, message(1, 7, 2 * small).view({small, 2}), 0, 7);
    if (work) work->wait();
    if (receives) expect_equal(received, message(1, 7, 2 * small).view({small, 2}));
  });
}

TEST(PointToPoint, FromAnyRank) {
  run_groups(3, [](ProcessGroupTutti& group) {
    if (group.getRank() > 0) {
      send(group, message(group.getRank(), 0, small), 0)->wait();
      group.barrier({})->wait();
      return;
    }
    std::vector<bool> seen(3);
    for (int i = 0; i < 2; ++i) {
      Tensors received{at::zeros({small})};
      const auto work = group.recvAnysource(received, 0);
      work->wait();
      const int source = work->sourceRank();
      expect_equal(received[0], message(source, 0, small));
      seen.at(static_cast<std::size_t>(source)) = true;
    }
    EXPECT_EQ(seen, (std::vector<bool>{false, true, true}));
    group.barrier({})->wait();
  });
}

TEST(PointToPoint, AFutureCompletesWithoutAWaiter) {
  run_groups(2, [](ProcessGroupTutti& group) {
    const int peer = 1 - group.getRank();
    auto received = at::zeros({small});
    std::promise<void> ended;
    receive(group, received, peer)->getFuture()->addCallback([&](c10::ivalue::Future&) { ended.set_value(); });
    send(group, message(group.getRank(), 0, small), peer)->wait();
    ended.get_future().wait();
    expect_equal(received, message(peer, 0, small));
  });
}

TEST(PointToPoint, WrongArguments) {
  run_groups(2, [](ProcessGroupTutti& group) {
    const auto some = at::zeros({2});
    const auto message_here = "send: rank " + std::to_string(group.getRank()) + " is the calling rank itself.";
    EXPECT_EQ(message_of<UsageError>([&] { send(group, some, group.getRank()); }), message_here);
    EXPECT_EQ(message_of<UsageError>([&] { receive(group, some, 2); }),
              "receive: rank 2 is not a rank of this group of 2.");
    EXPECT_EQ(message_of<UsageError>([&] { receive(group, some, 1 - group.getRank(), -1); }),
              "receive: the tag must not be negative, but is -1.");
    group.barrier({})->wait();
  });
}

// The group stays usable.
TEST(PointToPoint, AMessageOfAnotherSizeIsAnError) {
  run_groups(2, [](ProcessGroupTutti& group) {
    if (group.getRank() == 0) {
      send(group, message(0, 0, 2), 1)->wait();
      send(group, message(0, 1, small), 1)->wait();
    } else {
      auto received = at::zeros({small});
      EXPECT_EQ(message_of<MismatchError>([&] { receive(group, received, 0)->wait(); }),
                "receive (tag 0): rank 0 sent 8 bytes, but this rank expects 12. The message is dropped.");
      receive(group, received, 0)->wait();
      expect_equal(received, message(0, 1, small));
    }
    group.barrier({})->wait();
  });
}

TEST(PointToPoint, ADeadlineNamesThePeer) {
  run_groups(
      2,
      [](ProcessGroupTutti& group) {
        const int peer = 1 - group.getRank();
        auto received = at::zeros({small});
        const auto expected = "receive (tag 5): no message from rank " + std::to_string(peer) + " within 200 ms";
        EXPECT_EQ(message_of<TimeoutError>([&] { receive(group, received, peer, 5)->wait(); }), expected);
        EXPECT_EQ(message_of<TimeoutError>([&] {
                    Tensors tensors{received};
                    group.recvAnysource(tensors, 5)->wait();
                  }),
                  "receive (tag 5): no message from any rank within 200 ms");
      },
      "auto", milliseconds(200));
}

TEST(PointToPoint, AnUnreceivedMessageDelaysDestructionUntilItsDeadlineAtMost) {
  // Rank 0 leaves while its message waits for an address that rank 1 never publishes.
  run_groups(
      2,
      [](ProcessGroupTutti& group) {
        if (group.getRank() == 0) send(group, message(0, 1, small), 1);
        group.barrier({})->wait();
      },
      "auto", milliseconds(300));
}

TEST(PointToPoint, ADisconnectedRankIsNamed) {
  for (const char* backend : {"auto", "tcp"}) {
    run_groups(
        2,
        [](ProcessGroupTutti& group) {
          if (group.getRank() == 1) {
            send(group, message(1, 0, small), 0)->wait();
            return;
          }
          auto received = at::zeros({small});
          const auto second = receive(group, received, 1, 1);
          receive(group, received, 1)->wait();
          expect_equal(received, message(1, 0, small));
          const auto text = message_of<PeerError>([&] { second->wait(); });
          EXPECT_EQ(text.substr(0, 23), "receive (tag 1): rank 1") << text;
        },
        backend);
  }
}

const RankProgram waits_for_a_message("waits_for_a_message", [] {
  const auto environment = read_environment();
  c10d::TCPStoreOptions store_options;
  store_options.port = environment.master_port;
  store_options.isServer = environment.rank == 0;
  const auto store = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, store_options);
  auto options = c10::make_intrusive<ProcessGroupTutti::Options>();
  options->communicator_backend = std::getenv("BACKEND");
  ProcessGroupTutti group(store, environment.rank, environment.world_size, options);
  auto received = at::zeros({small});
  const int peer = 1 - environment.rank;
  const auto first = receive(group, received, peer);
  send(group, message(environment.rank, 0, small), peer)->wait();
  first->wait();
  expect_equal(received, message(peer, 0, small));
  std::puts("ready");
  std::fflush(stdout);
  if (environment.rank == 1) {
    for (;;) ::pause();
  }
  EXPECT_EQ(message_of<PeerError>([&] { receive(group, received, 1)->wait(); }),
            "receive (tag 0): rank 1 disconnected (connection closed)");
  EXPECT_EQ(message_of<PeerError>([&] { send(group, received, 1)->wait(); }),
            "send (tag 0): rank 1 disconnected (connection closed)");
});

TEST(PointToPoint, AKilledRankIsNamed) {
  for (const char* backend : {"auto", "tcp"}) {
    RankProcesses ranks(waits_for_a_message, 2, {.variables = {{"BACKEND", backend}}});
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ranks.wait_for_output(rank, "ready"));
    ranks.send_signal(1, SIGKILL);
    const auto results = ranks.wait();
    EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  }
}

}  // namespace
}  // namespace tutti::test::point_to_point_test
