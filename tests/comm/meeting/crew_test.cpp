// One process, no store: ranks of a crew that share a board in its memory.
#include "comm/meeting/crew.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "comm/meeting/crew_board.h"
#include "comm/meeting/turns.h"

namespace tutti::comm::crew_test {
namespace {

using std::chrono::milliseconds;
using Ranks = std::vector<int>;

constexpr Deadline begin{std::chrono::hours(1)};
constexpr milliseconds pause{100};

CrewBoard board_of(int size) {
  const auto segment = SharedSegment::create(CrewBoard::bytes(size));
  return {std::shared_ptr<void>(segment, segment->data()), size};
}

CrewIntroduction in_namespace(std::uint64_t inode) {
  return {.board = {.process = {.number = 1, .namespace_device = 1, .namespace_inode = inode}}};
}

TEST(Crew, IsOfRanksOfANodeThatSeeOneAnother) {
  const auto here = in_namespace(7);
  const auto contained = in_namespace(8);
  EXPECT_EQ(first_seen({0, 0, 1, 1}, {here, here, here, here}), (Ranks{0, 0, 2, 2})) << "equal numbers elsewhere";
  EXPECT_EQ(first_seen({0, 1, 0, 1}, {here, here, here, here}), (Ranks{0, 1, 0, 1}));
  EXPECT_EQ(first_seen({0, 0, 0}, {contained, here, here}), (Ranks{0, 1, 1}));
  EXPECT_EQ(first_seen({0, 0}, {in_namespace(0), in_namespace(0)}), (Ranks{0, 1})) << "it cannot be told";
}

TEST(Crew, AnIntroductionSurvivesTheStore) {
  const auto segment = SharedSegment::create(64);
  const CrewIntroduction alone{.board = segment->address(), .bell = SocketAddress{"fe80::1", 4711}};
  const auto told = CrewIntroduction::from_text(alone.to_text());
  EXPECT_TRUE(told.board.process.is(this_process()));
  EXPECT_EQ(told.board.descriptor, alone.board.descriptor);
  ASSERT_TRUE(told.bell);
  EXPECT_EQ(told.bell->host, "fe80::1");
  EXPECT_EQ(told.bell->port, 4711);
  EXPECT_FALSE(CrewIntroduction::from_text(CrewIntroduction{}.to_text()).bell);
  EXPECT_EQ(CrewIntroduction::from_text("short").board.descriptor, -1);
}

TEST(Crew, IsARing) {
  const Ranks first{0, 1, 0, 1, 0};
  const auto any = [](int) { return true; };
  EXPECT_EQ(next_in_crew(0, first, any), 2);
  EXPECT_EQ(next_in_crew(4, first, any), 0);
  EXPECT_EQ(next_in_crew(0, first, [](int rank) { return rank != 2; }), 4);
  EXPECT_EQ(next_in_crew(1, {0, 1}, any), -1);
}

TEST(Turns, WhoeverGaveTheLastSignOfLifeGivesTheNext) {
  const LastBeat last{.rank = 3, .at = begin};
  EXPECT_EQ(next_beat(last, /*leads=*/true, pause), begin + pause);
  EXPECT_EQ(next_beat(last, /*leads=*/false, pause), begin + pause + pause / 2);
}

TEST(CrewBoard, OneRankGivesSignsOfLifeUntilItDoesNot) {
  auto board = board_of(3);
  EXPECT_EQ(board.claim_beat(1, pause, begin), 1U) << "the first that comes";
  EXPECT_FALSE(board.claim_beat(0, pause, begin));
  EXPECT_FALSE(board.claim_beat(1, pause, begin + pause - milliseconds(1)));
  EXPECT_FALSE(board.claim_beat(0, pause, begin + pause)) << "rank 1 may be about to";
  EXPECT_EQ(board.claim_beat(1, pause, begin + pause), 2U);
  EXPECT_EQ(board.claim_beat(0, pause, begin + pause + pause * 3 / 2), 3U) << "it was stopped";
  EXPECT_TRUE(board.leads(0));
  EXPECT_FALSE(board.leads(1));
}

TEST(CrewBoard, WhoHasGoneIsNotWaitedFor) {
  for (const auto mark : {CrewBoard::away, CrewBoard::ended}) {
    auto board = board_of(3);
    EXPECT_TRUE(board.claim_beat(0, pause, begin));
    board.mark(0, mark);
    EXPECT_TRUE(board.leads(2));
    EXPECT_TRUE(board.claim_beat(2, pause, begin + pause));
    EXPECT_FALSE(board.leads(1));
  }
}

TEST(CrewBoard, OneOfManyThatComeAtATimeGivesTheSign) {
  auto board = board_of(8);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> claimed = 0;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 8; ++rank) {
      ranks.emplace_back([&, rank] { claimed += board.claim_beat(rank, pause, begin + 2 * round * pause) ? 1 : 0; });
    }
    for (auto& rank : ranks) rank.join();
    ASSERT_EQ(claimed, 1) << round;
  }
}

TEST(CrewBoard, KeepsWhatIsToldAndWhatWasHeard) {
  auto board = board_of(4);
  board.mark({.silent = {3}, .ended = {1}, .left = {0, 3}});
  board.mark(2, CrewBoard::away);
  const auto news = board.news();
  EXPECT_EQ(news.silent, Ranks{3});
  EXPECT_EQ(news.ended, Ranks{1});
  EXPECT_EQ(news.left, (Ranks{0, 3}));
  EXPECT_EQ(board.heard(), Deadline{});
  board.hear({2, 0}, {17, 4}, begin);
  EXPECT_EQ(board.beats(2), 17);
  EXPECT_EQ(board.beats(0), 4);
  EXPECT_EQ(board.heard(), begin);
}

TEST(CrewBoard, WakesThoseThatSleepAtIt) {
  auto board = board_of(2);
  const auto seen = board.wakes();
  std::thread other([&] { board.wake_all(); });
  while (board.wakes() == seen) board.sleep(seen, Clock::now() + std::chrono::hours(1));
  other.join();
}

}  // namespace
}  // namespace tutti::comm::crew_test
