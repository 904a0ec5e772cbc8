// One process, no store: local peers that share a liveness table in the process's memory.
#include "comm/health/local_peers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "comm/health/heartbeat_schedule.h"
#include "comm/health/liveness_table.h"

namespace tutti::comm::local_peers_test {
namespace {

using std::chrono::milliseconds;
using Ranks = std::vector<int>;

constexpr Deadline begin{std::chrono::hours(1)};
constexpr milliseconds interval{100};

LivenessTable table_of(int size) {
  const auto segment = SharedSegment::create(LivenessTable::bytes(size));
  return {std::shared_ptr<void>(segment, segment->data()), size};
}

LocalPeerInfo in_namespace(std::uint64_t inode) {
  return {.table = {.process = {.pid = 1, .namespace_device = 1, .namespace_inode = inode}}};
}

TEST(LocalPeers, AreRanksOfANodeInOnePidNamespace) {
  const auto here = in_namespace(7);
  const auto contained = in_namespace(8);
  EXPECT_EQ(find_leaders({0, 0, 1, 1}, {here, here, here, here}), (Ranks{0, 0, 2, 2})) << "equal numbers elsewhere";
  EXPECT_EQ(find_leaders({0, 1, 0, 1}, {here, here, here, here}), (Ranks{0, 1, 0, 1}));
  EXPECT_EQ(find_leaders({0, 0, 0}, {contained, here, here}), (Ranks{0, 1, 1}));
  EXPECT_EQ(find_leaders({0, 0}, {in_namespace(0), in_namespace(0)}), (Ranks{0, 1})) << "it cannot be told";
}

TEST(LocalPeers, InfoSurvivesEncoding) {
  const auto segment = SharedSegment::create(64);
  const LocalPeerInfo alone{.table = segment->address(), .liveness_address = SocketAddress{"fe80::1", 4711}};
  const auto decoded = LocalPeerInfo::from_text(alone.to_text());
  EXPECT_TRUE(decoded.table.process == this_process());
  EXPECT_EQ(decoded.table.descriptor, alone.table.descriptor);
  ASSERT_TRUE(decoded.liveness_address);
  EXPECT_EQ(decoded.liveness_address->host, "fe80::1");
  EXPECT_EQ(decoded.liveness_address->port, 4711);
  EXPECT_FALSE(LocalPeerInfo::from_text(LocalPeerInfo{}.to_text()).liveness_address);
  EXPECT_EQ(LocalPeerInfo::from_text("short").table.descriptor, -1);
}

TEST(LocalPeers, FormARing) {
  const Ranks leader{0, 1, 0, 1, 0};
  const auto any = [](int) { return true; };
  EXPECT_EQ(next_local_peer(0, leader, any), 2);
  EXPECT_EQ(next_local_peer(4, leader, any), 0);
  EXPECT_EQ(next_local_peer(0, leader, [](int rank) { return rank != 2; }), 4);
  EXPECT_EQ(next_local_peer(1, {0, 1}, any), -1);
}

TEST(HeartbeatSchedule, TheSenderOfTheLastHeartbeatSendsTheNext) {
  const LastHeartbeat last{.rank = 3, .at = begin};
  EXPECT_EQ(next_heartbeat(last, /*is_sender=*/true, interval), begin + interval);
  EXPECT_EQ(next_heartbeat(last, /*is_sender=*/false, interval), begin + interval + interval / 2);
}

TEST(LivenessTable, OneRankSendsHeartbeatsUntilItStops) {
  auto table = table_of(3);
  EXPECT_EQ(table.claim_heartbeat(1, interval, begin), 1U) << "the first that comes";
  EXPECT_FALSE(table.claim_heartbeat(0, interval, begin));
  EXPECT_FALSE(table.claim_heartbeat(1, interval, begin + interval - milliseconds(1)));
  EXPECT_FALSE(table.claim_heartbeat(0, interval, begin + interval)) << "rank 1 may be about to";
  EXPECT_EQ(table.claim_heartbeat(1, interval, begin + interval), 2U);
  EXPECT_EQ(table.claim_heartbeat(0, interval, begin + interval + interval * 3 / 2), 3U) << "it was stopped";
  EXPECT_TRUE(table.is_sender(0));
  EXPECT_FALSE(table.is_sender(1));
}

TEST(LivenessTable, AnExitedSenderIsReplacedAtOnce) {
  for (const auto mark : {LivenessTable::inactive, LivenessTable::exited}) {
    auto table = table_of(3);
    EXPECT_TRUE(table.claim_heartbeat(0, interval, begin));
    table.mark(0, mark);
    EXPECT_TRUE(table.is_sender(2));
    EXPECT_TRUE(table.claim_heartbeat(2, interval, begin + interval));
    EXPECT_FALSE(table.is_sender(1));
  }
}

TEST(LivenessTable, OneOfManyConcurrentRanksClaimsTheHeartbeat) {
  auto table = table_of(8);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> claimed = 0;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 8; ++rank) {
      ranks.emplace_back(
          [&, rank] { claimed += table.claim_heartbeat(rank, interval, begin + 2 * round * interval) ? 1 : 0; });
    }
    for (auto& rank : ranks) rank.join();
    ASSERT_EQ(claimed, 1) << round;
  }
}

TEST(LivenessTable, KeepsMarksAndReplies) {
  auto table = table_of(4);
  table.mark({.suspected = {3}, .exited = {1}, .left = {0, 3}});
  table.mark(2, LivenessTable::inactive);
  const auto status = table.status();
  EXPECT_EQ(status.suspected, Ranks{3});
  EXPECT_EQ(status.exited, Ranks{1});
  EXPECT_EQ(status.left, (Ranks{0, 3}));
  EXPECT_EQ(table.last_reply(), Deadline{});
  table.record_reply({2, 0}, {17, 4}, begin);
  EXPECT_EQ(table.heartbeats(2), 17);
  EXPECT_EQ(table.heartbeats(0), 4);
  EXPECT_EQ(table.last_reply(), begin);
}

TEST(LivenessTable, WakesSleepingRanks) {
  auto table = table_of(2);
  const auto seen = table.generation();
  std::thread other([&] { table.wake_all(); });
  while (table.generation() == seen) table.sleep(seen, Clock::now() + std::chrono::hours(1));
  other.join();
}

}  // namespace
}  // namespace tutti::comm::local_peers_test
