// One process. Who is at fault, from what the ranks posted.
#include "comm/meeting/blame.h"

#include <gtest/gtest.h>

namespace tutti::comm::blame_test {
namespace {

using Reason = Standing::Reason;

Standing stood(Reason reason, std::vector<int> waiting_for, std::uint64_t operation = 17) {
  return {.reason = reason,
          .operation = operation,
          .timeout = std::chrono::seconds(30),
          .waiting_for = std::move(waiting_for),
          .where = "all_reduce 'loss' (operation " + std::to_string(operation) + ")"};
}

TEST(Blame, StandingSurvivesTheStore) {
  const auto standing = stood(Reason::closed, {3, 1});
  const auto read = Standing::from_text(standing.to_text());
  EXPECT_EQ(read.reason, standing.reason);
  EXPECT_EQ(read.operation, standing.operation);
  EXPECT_EQ(read.timeout, standing.timeout);
  EXPECT_EQ(read.waiting_for, standing.waiting_for);
  EXPECT_EQ(read.where, standing.where);
}

TEST(Blame, TheRankWithoutAPostIsLate) {
  const Standings standings = {stood(Reason::timeout, {2}), stood(Reason::timeout, {2}), std::nullopt};
  const auto verdict = judge(standings, 0);
  EXPECT_EQ(verdict.culprits, std::vector<int>{2});
  EXPECT_TRUE(verdict.timed_out);
  EXPECT_EQ(verdict.message,
            "all_reduce 'loss' (operation 17): rank 2 did not arrive within 30 s; ranks 0, 1 were waiting");
}

TEST(Blame, ARankThatIsStoppedIsSaidToBe) {
  auto stopped = stood(Reason::stopped, {2});
  stopped.timeout = std::chrono::milliseconds(1500);
  const Standings standings = {stopped, stood(Reason::closed, {0}), stood(Reason::closed, {0})};
  for (const int rank : {0, 1}) {
    const auto verdict = judge({standings[0], standings[1], std::nullopt}, rank);
    EXPECT_EQ(verdict.culprits, std::vector<int>{2});
    EXPECT_TRUE(verdict.timed_out);
    EXPECT_NE(verdict.message.find("rank 2 has been stopped for 1500 ms (SIGSTOP or Ctrl+Z)"), std::string::npos)
        << verdict.message;
  }
  const auto awake = judge(standings, 2);
  EXPECT_NE(awake.message.find("gave up waiting for this rank (2) after 1500 ms"), std::string::npos) << awake.message;
}

TEST(Blame, FollowsTheChainToTheRankThatDied) {
  const Standings standings = {stood(Reason::closed, {1}), stood(Reason::closed, {2}), std::nullopt};
  const auto verdict = judge(standings, 0);
  EXPECT_EQ(verdict.culprits, std::vector<int>{2});
  EXPECT_FALSE(verdict.timed_out);
  EXPECT_EQ(verdict.message,
            "all_reduce 'loss' (operation 17): rank 2 is gone (connection closed); ranks 0, 1 were waiting");
}

TEST(Blame, AClosedConnectionBehindATimeoutIsATimeout) {
  const Standings standings = {stood(Reason::closed, {1}), stood(Reason::timeout, {2}), std::nullopt};
  EXPECT_TRUE(judge(standings, 0).timed_out);
}

TEST(Blame, WhoComesLateIsToldSo) {
  // Those that gave up may have let go of the channel or have ended by then.
  for (const auto reason : {Reason::closed, Reason::left, Reason::ended}) {
    const Standings standings = {stood(Reason::timeout, {2}), stood(Reason::timeout, {2}), stood(reason, {0})};
    EXPECT_EQ(judge(standings, 0).culprits, std::vector<int>{2});
    const auto verdict = judge(standings, 2);
    EXPECT_EQ(verdict.culprits, std::vector<int>{2});
    EXPECT_NE(verdict.message.find("gave up waiting for this rank (2) after 30 s"), std::string::npos)
        << verdict.message;
  }
}

TEST(Blame, NamesWhoAbandonedAnOperation) {
  const Standings standings = {stood(Reason::closed, {1}), stood(Reason::abandoned, {}, 16)};
  const auto verdict = judge(standings, 0);
  EXPECT_EQ(verdict.culprits, std::vector<int>{1});
  EXPECT_NE(verdict.message.find("rank 1 abandoned all_reduce 'loss' (operation 16)"), std::string::npos);
}

TEST(Blame, AProcessThatHasEndedIsNotAskedForItsWord) {
  const Standings standings = {stood(Reason::ended, {2}), stood(Reason::closed, {0}), std::nullopt};
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(is_complete(standings, rank));
    const auto verdict = judge(standings, rank);
    EXPECT_EQ(verdict.culprits, std::vector<int>{2});
    EXPECT_FALSE(verdict.timed_out);
    EXPECT_NE(verdict.message.find("rank 2 is gone (the process has ended)"), std::string::npos) << verdict.message;
  }
  // What it left counts: here, that it ended because of another one.
  const Standings told = {stood(Reason::ended, {1}), stood(Reason::closed, {2}), std::nullopt};
  EXPECT_FALSE(is_complete(told, 0));
  EXPECT_EQ(judge(told, 0).culprits, std::vector<int>{2});
  EXPECT_TRUE(is_complete({stood(Reason::stopped, {1}), std::nullopt}, 0));
  EXPECT_TRUE(is_complete({stood(Reason::left, {1}), std::nullopt}, 0));
  const auto left = judge({stood(Reason::left, {1}), std::nullopt}, 0);
  EXPECT_NE(left.message.find("rank 1 is gone (connection closed)"), std::string::npos) << left.message;
}

TEST(Blame, AMachineThatIsSilentIsNotAskedForItsWord) {
  const Standings standings = {stood(Reason::silent, {2}), stood(Reason::closed, {0}), std::nullopt};
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(is_complete(standings, rank));
    const auto verdict = judge(standings, rank);
    EXPECT_EQ(verdict.culprits, std::vector<int>{2});
    EXPECT_TRUE(verdict.timed_out);
    EXPECT_NE(verdict.message.find("rank 2 has not been heard of for 30 s"), std::string::npos) << verdict.message;
  }
  const auto store = judge({stood(Reason::silent, {})}, 0);
  EXPECT_EQ(store.culprits, std::vector<int>{});
  EXPECT_NE(store.message.find("the launcher's store has not answered for 30 s"), std::string::npos) << store.message;
}

TEST(Blame, ACircleNamesWhomThisRankWaitedFor) {
  const Standings standings = {stood(Reason::timeout, {1}), stood(Reason::timeout, {0})};
  EXPECT_EQ(judge(standings, 0).culprits, std::vector<int>{1});
}

TEST(Blame, TheListHoldsTheLastWordOfEachRank) {
  const std::string standing = stood(Reason::closed, {3, 1}).to_text();
  const std::string list = to_entry(2, standing) + to_entry(0, "") + to_entry(2, "again 7 x\n") + to_entry(1, standing);
  const auto posts = posts_in(list, 4);
  ASSERT_EQ(posts.size(), 4U);
  EXPECT_EQ(posts[0], "");
  EXPECT_EQ(posts[1], standing);
  EXPECT_EQ(posts[2], "again 7 x\n");
  EXPECT_FALSE(posts[3]);
  EXPECT_EQ(posts_in("", 1), std::vector<std::optional<std::string>>(1));
}

TEST(Blame, AListThatNoRankCanHaveWrittenEndsWhereItGoesWrong) {
  for (const std::string wrong : {"4 1 x", "-1 1 x", "1 99 x", "1 18446744073709551615 x", "1", "1 2", "x", "1 -1 x"}) {
    const auto posts = posts_in(to_entry(0, "fine") + wrong, 2);
    EXPECT_EQ(posts[0], "fine") << wrong;
    EXPECT_FALSE(posts[1]) << wrong;
  }
}

TEST(Blame, ALookIsCompleteWhenEveryTrailEndsInAPost) {
  EXPECT_FALSE(is_complete({stood(Reason::closed, {1}), std::nullopt}, 0));
  EXPECT_TRUE(is_complete({stood(Reason::closed, {1}), std::nullopt}, 0, {1})) << "its process has ended";
  EXPECT_FALSE(is_complete({stood(Reason::closed, {1}), std::nullopt, std::nullopt}, 0, {2}));
  EXPECT_TRUE(is_complete({stood(Reason::closed, {1}), std::nullopt, stood(Reason::ended, {1})}, 0)) << "rank 2 saw it";
  EXPECT_FALSE(is_complete({stood(Reason::closed, {1}), std::nullopt, stood(Reason::left, {1})}, 0));
  EXPECT_FALSE(is_complete({stood(Reason::closed, {1}), stood(Reason::closed, {2}), std::nullopt}, 0));
  EXPECT_TRUE(is_complete({stood(Reason::closed, {1}), stood(Reason::timeout, {0}), std::nullopt}, 0));
}

}  // namespace
}  // namespace tutti::comm::blame_test
