// Ranks: none. What the coordinator pushes is called directly.
#include "comm/health/heartbeat_monitor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <future>
#include <string>
#include <thread>

#include "core/file_descriptor.h"

namespace tutti::comm::heartbeat_monitor_test {
namespace {

using coordinator::Cause;
using std::chrono::milliseconds;
using Ranks = std::vector<int>;
using Causes = FailureCauses;

constexpr int owner = 0;

/// The monitor of rank 1 of four ranks on two nodes.
struct Job {
  std::shared_ptr<JobEvents> events = std::make_shared<JobEvents>(owner);
  coordinator::ClientEvents push = events->handlers();
  std::shared_ptr<HeartbeatMonitor> monitor = std::make_shared<HeartbeatMonitor>(
      events, HeartbeatMonitorOptions{.rank = 1, .node_of_rank = {0, 0, 1, 1}, .heartbeat_timeout = milliseconds(300)});

  Causes failed() const { return monitor->failed_ranks(events->status()); }
};

bool pipe_has_bytes(const FileDescriptor& pipe) {
  pollfd ready{.fd = pipe.get(), .events = POLLIN, .revents = 0};
  return ::poll(&ready, 1, 0) == 1;
}

TEST(HeartbeatMonitor, ReportsStoppedAndUnreachableRanks) {
  Job job;
  job.push.on_failed({.ranks = {2, 3}, .cause = Cause::unreachable});
  job.push.on_failed({.ranks = {0}, .cause = Cause::stopped});
  EXPECT_EQ(job.failed(), (Causes{{0, Cause::stopped}, {2, Cause::unreachable}, {3, Cause::unreachable}}));
}

TEST(HeartbeatMonitor, AnExitIsAFailureLater) {
  Job job;
  int calls = 0;
  const auto subscription = job.events->subscribe({.on_failed = [&](const auto&) { ++calls; }});
  EXPECT_EQ(job.events->next_change(), Deadline::max());
  job.push.on_failed({.ranks = {2}, .cause = Cause::exited});
  EXPECT_EQ(calls, 1) << "waiting threads must learn when it becomes a failure";
  EXPECT_EQ(job.failed(), Causes{}) << "what it has sent may still be read";
  ASSERT_LT(job.events->next_change(), Deadline::max());
  std::this_thread::sleep_until(job.events->next_change());
  EXPECT_EQ(job.failed(), (Causes{{2, Cause::exited}}));
  EXPECT_EQ(job.events->next_change(), Deadline::max());
  try {
    GroupHealth(job.monitor, {1, 2}).throw_if_peers_failed();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const TransferError& error) {
    EXPECT_EQ(error.peers(), Ranks{1});
    EXPECT_EQ(error.kind(), TransferError::Kind::process_exited);
  }
  EXPECT_NO_THROW(GroupHealth(job.monitor, {1, 3}).throw_if_peers_failed());
}

TEST(HeartbeatMonitor, ARankThatHasLeftIsNoFailure) {
  Job job;
  job.push.on_left({2});
  EXPECT_EQ(job.events->next_change(), Deadline::max());
  EXPECT_EQ(job.failed(), Causes{});
}

TEST(HeartbeatMonitor, AStoppedRankThatExitsIsAFailureAtOnce) {
  Job job;
  job.push.on_failed({.ranks = {2}, .cause = Cause::stopped});
  job.push.on_failed({.ranks = {2}, .cause = Cause::exited});
  EXPECT_EQ(job.failed(), (Causes{{2, Cause::exited}}));
  EXPECT_TRUE(job.events->has_ended(2));
}

TEST(HeartbeatMonitor, AnUnreachableCoordinatorFailsItsNode) {
  Job job;
  Causes received;
  const auto subscription = job.events->subscribe({.on_lost = [&] { received = job.failed(); }});
  job.push.on_lost(Cause::unreachable, "its machine does not answer");
  EXPECT_TRUE(job.events->status().is_coordinator_lost);
  EXPECT_EQ(received, (Causes{{0, Cause::unreachable}})) << "the other ranks of that node, without this rank";
}

TEST(HeartbeatMonitor, AStoppedCoordinatorFailsItsRank) {
  Job job;
  job.push.on_lost(Cause::stopped, "its process does not answer");
  EXPECT_TRUE(job.events->status().is_coordinator_lost);
  EXPECT_EQ(job.failed(), (Causes{{owner, Cause::stopped}}));
}

TEST(HeartbeatMonitor, ARankThatIsRefusedNamesNoRank) {
  Job job;
  job.push.on_lost(std::nullopt, "it has judged that this rank has failed");
  EXPECT_TRUE(job.events->status().is_coordinator_lost);
  EXPECT_EQ(job.failed(), Causes{});
}

// The reader of standard error may be stopped; the thread that calls on_failed() sends the heartbeats. The line is
// dropped.
TEST(HeartbeatMonitor, AWarningDoesNotWaitForTheReaderOfStandardError) {
  Job job;
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const FileDescriptor reads(pipe[0]);
  const FileDescriptor writes(pipe[1]);
  ASSERT_EQ(::fcntl(writes.get(), F_SETFL, O_NONBLOCK), 0);
  while (::write(writes.get(), "x", 1) == 1) {
  }
  ASSERT_EQ(::fcntl(writes.get(), F_SETFL, 0), 0);
  const FileDescriptor standard_error(::dup(STDERR_FILENO));
  ::dup2(writes.get(), STDERR_FILENO);
  auto pushed = std::async(std::launch::async, [&] {
    job.push.on_failed({.ranks = {0, 2}, .cause = Cause::stopped, .is_warning = true});
  });
  EXPECT_EQ(pushed.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  for (char byte = 'x'; byte == 'x' && pipe_has_bytes(reads);) ASSERT_EQ(::read(reads.get(), &byte, 1), 1);
  job.push.on_failed({.ranks = {0, 3}, .cause = Cause::stopped, .is_warning = true});
  std::array<char, 4096> line{};
  EXPECT_GT(::read(reads.get(), line.data(), line.size() - 1), 0);
  ::dup2(standard_error.get(), STDERR_FILENO);
  EXPECT_NE(std::string(line.data()).find("ranks 0, 3 have missed heartbeats"), std::string::npos) << line.data();
}

TEST(GroupHealth, NamesMembersByTheirRanksInTheGroup) {
  EXPECT_EQ(GroupHealth(Job().monitor, {1, 4, 6}).members_among({6, 2, 1}), (Ranks{0, 2}));
}

TEST(GroupHealth, SeesTheFailuresOfItsMembers) {
  Job job;
  const GroupHealth all(job.monitor, {0, 1, 2, 3});
  const auto group = all.for_group({1, 3});
  job.push.on_failed({.ranks = {2}, .cause = Cause::stopped});
  EXPECT_NO_THROW(group.throw_if_peers_failed());
  job.push.on_failed({.ranks = {3}, .cause = Cause::stopped});
  try {
    group.throw_if_peers_failed();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const TransferError& error) {
    EXPECT_EQ(error.peers(), Ranks{1});
    EXPECT_EQ(error.kind(), TransferError::Kind::process_stopped);
    EXPECT_EQ(error.waited(), milliseconds(300));
  }
}

}  // namespace
}  // namespace tutti::comm::heartbeat_monitor_test
