// Ranks: 2 and 5 as threads.
#include "comm/shm/node_broadcast.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "comm/algorithms/p2p_backend.h"
#include "comm/backend/topology.h"
#include "support/tcp_transports.h"

namespace tutti::comm::node_broadcast_test {
namespace {

using Bytes = std::vector<std::byte>;

const Operation operation{.number = 1, .op_name = "node broadcast", .name = "", .timeout = std::chrono::seconds(20)};

/// One rank of a node that has all ranks of `transport`.
struct Member {
  std::shared_ptr<NodeState> node;
  std::unique_ptr<NodeBroadcast> node_broadcast;

  explicit Member(const std::shared_ptr<Transport>& transport) {
    const std::vector<int> nodes(static_cast<std::size_t>(transport->size()), 0);
    P2pBackend messages(transport, make_topology(nodes, transport->rank()));
    std::string reason;
    node = NodeState::connect(messages, transport, operation, reason);
    node_broadcast = std::make_unique<NodeBroadcast>(
        node, create_shared_memory(messages, operation, NodeBroadcast::slots * NodeBroadcast::slot_bytes, reason));
  }
};

/// Runs `of_rank(member, rank)` on `size` ranks.
template <typename OfRank>
void run_ranks(int size, const OfRank& of_rank) {
  const auto transports = test::make_tcp_transports(size);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      Member member(transports[rank]);
      of_rank(member, rank);
      member.node->close();
    });
  }
}

Bytes pattern(std::size_t length, int round) {
  Bytes bytes(length);
  for (std::size_t i = 0; i < length; ++i)
    bytes[i] = static_cast<std::byte>(i / 7 + i + static_cast<std::size_t>(round));
  return bytes;
}

TEST(NodeBroadcast, SendsTheLeadersBytesToAllRanks) {
  constexpr std::size_t slot = NodeBroadcast::slot_bytes;
  for (const int size : {2, 5}) {
    run_ranks(size, [&](const Member& member, int rank) {
      int round = 0;
      for (const std::size_t length : {std::size_t{0}, std::size_t{1}, slot - 1, slot, slot + 1, 7 * slot + 3}) {
        ++round;
        Bytes bytes = rank == 0 ? pattern(length, round) : Bytes(length);
        member.node_broadcast->run(bytes, {operation});
        EXPECT_EQ(bytes, pattern(length, round)) << length << " bytes on rank " << rank;
      }
    });
  }
}

// The leader is ahead by at most the number of slots, and does not overwrite a slot before all ranks have read it.
TEST(NodeBroadcast, WaitsForRanksThatHaveNotConsumedTheSlot) {
  constexpr int rounds = 500;
  run_ranks(5, [&](const Member& member, int rank) {
    for (int round = 0; round < rounds; ++round) {
      if (rank == round % 5) std::this_thread::yield();
      Bytes bytes = rank == 0 ? pattern(40, round) : Bytes(40);
      member.node_broadcast->run(bytes, {operation});
      EXPECT_EQ(bytes, pattern(40, round)) << "round " << round << " on rank " << rank;
    }
  });
}

TEST(NodeBroadcast, NamesAnAbsentLeader) {
  run_ranks(2, [&](const Member& member, int rank) {
    if (rank == 0) {
      while (!member.node->of(1).closed.load()) std::this_thread::yield();
      return;
    }
    Bytes bytes(1);
    const auto deadline = Clock::now() + std::chrono::milliseconds(50);
    try {
      member.node_broadcast->run(bytes, {operation, deadline});
      ADD_FAILURE() << "no error was thrown";
    } catch (const TransferError& error) {
      EXPECT_EQ(error.kind(), TransferError::Kind::timeout);
      EXPECT_EQ(error.peers(), std::vector<int>{0});
    }
    member.node->close();
  });
}

TEST(NodeBroadcast, EndsWhereTheLeaderHasLeft) {
  run_ranks(2, [&](const Member& member, int rank) {
    if (rank == 0) return;
    Bytes bytes(1);
    try {
      member.node_broadcast->run(bytes, {operation});
      ADD_FAILURE() << "no error was thrown";
    } catch (const TransferError& error) {
      EXPECT_EQ(error.kind(), TransferError::Kind::connection_closed);
      EXPECT_EQ(error.peers(), std::vector<int>{0});
    }
  });
}

}  // namespace
}  // namespace tutti::comm::node_broadcast_test
