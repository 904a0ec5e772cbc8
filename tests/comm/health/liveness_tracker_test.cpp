// One process, no store.
#include "comm/health/liveness_tracker.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tutti::comm::liveness_tracker_test {
namespace {

using std::chrono::milliseconds;
using Ranks = std::vector<int>;

constexpr milliseconds heartbeat_timeout{1000};
constexpr Deadline begin{};

constexpr int store_marker = -7;

Ranks check_suspects(LivenessTracker& tracker, Deadline now) {
  const auto suspects = tracker.check(now);
  return suspects.store ? Ranks{store_marker} : suspects.ranks;
}

constexpr milliseconds interval{50};

/// Checks as a rank whose next check is 50 ms later.
Ranks check_at(LivenessTracker& tracker, Deadline now) {
  auto ranks = check_suspects(tracker, now);
  tracker.set_next_check(now + interval);
  return ranks;
}

/// Checks every 50 ms. Before each check the store answers with `heartbeats` of the time.
template <typename Beats>
Ranks run_until(LivenessTracker& tracker, milliseconds until, const Beats& heartbeats) {
  Ranks ranks;
  for (milliseconds now = interval; now <= until; now += interval) {
    tracker.on_request(begin + now);
    tracker.on_reply();
    tracker.on_heartbeats(heartbeats(now), begin + now);
    ranks = check_at(tracker, begin + now);
  }
  return ranks;
}

TEST(LivenessTracker, SuspectsPeersWhoseCounterDoesNotChange) {
  LivenessTracker tracker({5, 3}, 0, heartbeat_timeout, begin);
  // Rank 5 sends no heartbeat from 500 ms on.
  const auto heartbeats = [](milliseconds now) {
    return std::vector<std::int64_t>{std::min<std::int64_t>(now.count(), 500), now.count()};
  };
  EXPECT_EQ(run_until(tracker, milliseconds(1450), heartbeats), Ranks{});
  LivenessTracker again({5, 3}, 0, heartbeat_timeout, begin);
  EXPECT_EQ(run_until(again, milliseconds(1500), heartbeats), Ranks{5});
}

TEST(LivenessTracker, ReportsAnUnreachableStore) {
  LivenessTracker tracker({5}, 2, heartbeat_timeout, begin);
  EXPECT_EQ(run_until(tracker, milliseconds(300), [](milliseconds now) { return std::vector{now.count()}; }), Ranks{});
  tracker.on_request(begin + milliseconds(300));
  for (int now = 350; now < 1300; now += 50) EXPECT_EQ(check_at(tracker, begin + milliseconds(now)), Ranks{}) << now;
  EXPECT_EQ(check_at(tracker, begin + milliseconds(1300)), Ranks{store_marker});
}

TEST(LivenessTracker, ReportsALostStoreUnlessItsOwnerHadExited) {
  for (const bool left : {false, true}) {
    LivenessTracker tracker({0, 1}, 0, heartbeat_timeout, begin);
    const auto heartbeats = [&](milliseconds now) {
      return std::vector<std::int64_t>{left ? exited_heartbeat : 1, now.count()};
    };
    EXPECT_EQ(run_until(tracker, milliseconds(300), heartbeats), Ranks{});
    tracker.on_request(begin + milliseconds(300));
    EXPECT_EQ(tracker.on_store_lost(), left);
    for (int now = 350; now < 1300; now += 50) (void)check_at(tracker, begin + milliseconds(now));
    if (!left) {
      EXPECT_EQ(check_at(tracker, begin + milliseconds(1300)), Ranks{store_marker});
    }
  }
}

TEST(LivenessTracker, AnOwnerThatIsNoPeerMayAnnounceItsExit) {
  LivenessTracker tracker({1}, 0, heartbeat_timeout, begin);
  tracker.on_owner_exit();
  tracker.on_request(begin);
  EXPECT_TRUE(tracker.on_store_lost());
}

TEST(LivenessTracker, SuspectsNoPeerWhileTheStoreIsUnreachable) {
  LivenessTracker tracker({1, 2}, 0, heartbeat_timeout, begin);
  EXPECT_EQ(run_until(tracker, milliseconds(300),
                      [](milliseconds now) {
                        return std::vector{now.count(), now.count()};
                      }),
            Ranks{});
  tracker.on_request(begin + milliseconds(400));
  Ranks suspects;
  for (int now = 350; suspects.empty(); now += 50) suspects = check_at(tracker, begin + milliseconds(now));
  EXPECT_EQ(suspects, Ranks{store_marker});
}

TEST(LivenessTracker, DoesNotSuspectExitedPeers) {
  LivenessTracker tracker({1, 2}, 0, heartbeat_timeout, begin);
  const auto heartbeats = [](milliseconds) { return std::vector<std::int64_t>{exited_heartbeat, 7}; };
  EXPECT_EQ(run_until(tracker, milliseconds(3000), heartbeats), Ranks{2});
}

TEST(LivenessTracker, DoesNotCountWhileThisProcessWasStopped) {
  LivenessTracker tracker({1}, 0, heartbeat_timeout, begin);
  EXPECT_EQ(run_until(tracker, milliseconds(300), [](milliseconds now) { return std::vector{now.count()}; }), Ranks{});
  tracker.on_request(begin + milliseconds(300));
  EXPECT_EQ(check_at(tracker, begin + std::chrono::hours(1)), Ranks{});
  // 200 ms of that hour count.
  for (int after = 50; after < 800; after += 50) {
    EXPECT_EQ(check_at(tracker, begin + std::chrono::hours(1) + milliseconds(after)), Ranks{}) << after;
  }
  EXPECT_EQ(check_at(tracker, begin + std::chrono::hours(1) + milliseconds(800)), Ranks{store_marker});
}

TEST(LivenessTracker, APlannedLongIntervalCountsInFull) {
  LivenessTracker tracker({1}, 0, heartbeat_timeout, begin);
  tracker.on_request(begin);
  tracker.set_next_check(begin + heartbeat_timeout);
  EXPECT_EQ(check_suspects(tracker, begin + heartbeat_timeout), Ranks{store_marker});
}

TEST(LivenessTracker, UsesRepliesToOtherLocalPeers) {
  LivenessTracker tracker({1}, 0, heartbeat_timeout, begin);
  tracker.on_heartbeats({5}, begin + milliseconds(400));
  tracker.set_next_check(begin + milliseconds(1400));
  tracker.on_heartbeats({5}, begin + milliseconds(1399));
  EXPECT_EQ(check_suspects(tracker, begin + milliseconds(1400)), Ranks{})
      << "its last heartbeat was at 400 ms, the last request at 1399 ms";
  tracker.on_heartbeats({5}, begin + milliseconds(1400));
  EXPECT_EQ(check_suspects(tracker, begin + milliseconds(1400)), Ranks{1});
}

TEST(LivenessTracker, IsSuspectAfterHalfTheTimeout) {
  LivenessTracker tracker({1}, 0, heartbeat_timeout, begin);
  EXPECT_FALSE(tracker.is_suspect(begin + std::chrono::hours(1))) << "nothing was asked";
  tracker.on_request(begin);
  EXPECT_FALSE(tracker.is_suspect(begin + milliseconds(499)));
  EXPECT_TRUE(tracker.is_suspect(begin + milliseconds(500)));
  tracker.on_reply();
  EXPECT_FALSE(tracker.is_suspect(begin + milliseconds(500)));
  tracker.on_heartbeats({0}, begin + milliseconds(500));
  EXPECT_TRUE(tracker.is_suspect(begin + milliseconds(500))) << "of rank 1";
  tracker.on_heartbeats({0}, begin + 2 * heartbeat_timeout);
  EXPECT_FALSE(tracker.is_suspect(begin + 2 * heartbeat_timeout)) << "there is none any more";
}

TEST(LivenessTracker, IntervalGrowsWithTheNumberOfGroups) {
  EXPECT_EQ(heartbeat_interval(2), milliseconds(250));
  EXPECT_EQ(heartbeat_interval(64), milliseconds(250));
  EXPECT_EQ(heartbeat_interval(1024), milliseconds(4000));
}

TEST(StoppedDuration, CountsFromTheMiddleBetweenTwoChecks) {
  StoppedDuration process(begin);
  EXPECT_EQ(process.check(begin + milliseconds(500), false), milliseconds(0));
  EXPECT_FALSE(process.is_stopped());
  EXPECT_EQ(process.check(begin + milliseconds(1000), true), milliseconds(250));
  EXPECT_TRUE(process.is_stopped());
  EXPECT_EQ(process.check(begin + milliseconds(1050), true), milliseconds(300));
  EXPECT_EQ(process.check(begin + milliseconds(1100), false), milliseconds(0));
  EXPECT_EQ(process.check(begin + milliseconds(1150), true), milliseconds(25));
}

TEST(StoppedDuration, ExpiresEarlierWhilePollingFast) {
  StoppedDuration process(begin);
  EXPECT_FALSE(process.is_expired(milliseconds(500), true));
  process.check(begin + milliseconds(500), true);
  EXPECT_TRUE(process.is_expired(milliseconds(500), true)) << "for up to 500 ms";
  EXPECT_FALSE(process.is_expired(milliseconds(500), false));
  EXPECT_TRUE(process.is_expired(milliseconds(250), false));
  EXPECT_FALSE(process.is_expired(milliseconds(550), true));
}

TEST(StoppedDuration, DoesNotCountWhileTheCheckingProcessWasStopped) {
  StoppedDuration process(begin);
  EXPECT_EQ(process.check(begin + std::chrono::hours(1), true), milliseconds(250));
  EXPECT_EQ(process.check(begin + std::chrono::hours(2), true), milliseconds(350));
}

}  // namespace
}  // namespace tutti::comm::liveness_tracker_test
