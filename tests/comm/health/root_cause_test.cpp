// Ranks: none. The search for the root cause while the coordinator, which passes reports on, is lost.
#include "comm/health/root_cause.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/health/heartbeat_monitor.h"

namespace tutti::comm::root_cause_test {
namespace {

using std::chrono::milliseconds;
using Kind = TransferError::Kind;

const Operation operation{.number = 2, .op_name = "all_reduce", .name = {}, .timeout = std::chrono::seconds(30)};

// The failure board and the health of rank 3 of four on two nodes; rank 0 runs the coordinator.
class Rank3 final : public PeerHealth {
 public:
  const std::shared_ptr<JobEvents> events = std::make_shared<JobEvents>(0);
  const coordinator::ClientEvents handlers = events->handlers();

  std::shared_ptr<FailureBoard> failure_board() override { return std::make_shared<Board>(events); }
  void throw_if_peers_failed() const override { health_.throw_if_peers_failed(); }
  void close() noexcept override {}

  RootCause find_root_cause_of(Kind kind, const std::vector<int>& peers) {
    RootCauseQuery query(*this, 3, 4, operation, make_report(TransferError(kind, peers, "detail"), operation));
    return query.find();
  }

 private:
  class Board final : public FailureBoard {
   public:
    explicit Board(std::shared_ptr<JobEvents> events) : events_(std::move(events)) {}
    void publish(int /*rank*/, const std::string& /*text*/) override {}
    std::vector<std::optional<std::string>> read() override {
      std::vector<std::optional<std::string>> by_rank(4);
      for (const auto& [rank, text] : events_->reports("job")) by_rank[static_cast<std::size_t>(rank)] = text;
      return by_rank;
    }
    bool is_reachable() override { return !events_->lost_reason(); }
    int owner() const override { return 0; }

   private:
    std::shared_ptr<JobEvents> events_;
  };

  const GroupHealth health_{
      std::make_shared<HeartbeatMonitor>(
          events,
          HeartbeatMonitorOptions{.rank = 3, .node_of_rank = {0, 0, 1, 1}, .heartbeat_timeout = milliseconds(2000)}),
      {0, 1, 2, 3}};
};

// Rank 2, on the same node, sees the cut link first and closes its connections. Its report cannot reach this rank.
TEST(RootCauseQuery, BehindACutLinkNamesTheNodeThatDoesNotAnswer) {
  Rank3 rank;
  std::jthread link([&] { rank.handlers.on_lost(coordinator::Cause::unreachable, "no answer"); });
  const auto found = rank.find_root_cause_of(Kind::connection_closed, {2});
  EXPECT_EQ(found.failed_ranks, (std::vector<int>{0, 1}));
  EXPECT_TRUE(found.timed_out);
  EXPECT_NE(found.message.find("all_reduce (operation 2): ranks 0, 1 missed heartbeats for 2 s"), std::string::npos)
      << found.message;
}

// This rank sees the cut link first, in a call of its node's subgroup, none of whose ranks has failed.
TEST(RootCauseQuery, InASubgroupBehindACutLinkNamesTheNodeThatDoesNotAnswer) {
  Rank3 rank;
  rank.handlers.on_lost(coordinator::Cause::unreachable, "no answer");
  const auto found = rank.find_root_cause_of(Kind::heartbeat_lost, {});
  EXPECT_EQ(found.failed_ranks, (std::vector<int>{0, 1}));
  EXPECT_NE(found.message.find("all_reduce (operation 2): ranks 0, 1 missed heartbeats for 2 s"), std::string::npos)
      << found.message;
}

TEST(RootCauseQuery, AwaitsTheReportOfARankThatClosedItsConnections) {
  Rank3 rank;
  std::jthread reports([&] {
    rank.handlers.on_report("job", 2,
                            make_report(TransferError(Kind::process_exited, {1}, "detail"), operation).to_text());
  });
  EXPECT_EQ(rank.find_root_cause_of(Kind::connection_closed, {2}).failed_ranks, std::vector<int>{1});
}

TEST(RootCauseQuery, NamesTheRankWhoseCoordinatorExited) {
  Rank3 rank;
  std::jthread exit([&] { rank.handlers.on_lost(coordinator::Cause::exited, "connection closed"); });
  const auto found = rank.find_root_cause_of(Kind::connection_closed, {2});
  EXPECT_EQ(found.failed_ranks, std::vector<int>{0});
  EXPECT_FALSE(found.timed_out);
  EXPECT_NE(found.message.find("rank 0, which runs the coordinator, exited"), std::string::npos) << found.message;
}

}  // namespace
}  // namespace tutti::comm::root_cause_test
