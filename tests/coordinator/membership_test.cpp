// Membership by itself: single rules, and all sequences of events up to a length.
#include "coordinator/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace tutti::coordinator::membership_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Verdict = Membership::Verdict;

constexpr auto timeout = Milliseconds(15000);
const Time start = Time() + std::chrono::hours(1);

Hello hello(int rank, std::uint64_t key = 1, int world_size = 4, const std::string& node = "a",
            const std::string& version = "1") {
  return {.member = {.rank = rank, .world_size = world_size, .node = node, .version = version}, .key = {key, 0}};
}

bool yes(int) {
  return true;
}
bool no(int) {
  return false;
}

// Ranks 0, 1 on node a and 2, 3 on node b.
Membership two_nodes() {
  Membership members(4, timeout);
  for (int rank = 0; rank < 4; ++rank) members.hello(hello(rank, 1, 4, rank < 2 ? "a" : "b"), start);
  return members;
}

TEST(Membership, AnotherWorldSizeEndsAJobThatGathers) {
  Membership members(4, timeout);
  members.hello(hello(0), start);
  const auto result = members.hello(hello(1, 1, 5), start);
  EXPECT_EQ(result.verdict, Verdict::contradicted);
  EXPECT_EQ(result.why,
            "rank 1 has a WORLD_SIZE of 5 where the coordinator has 4; all launchers need the same -n and "
            "--nnodes");
}

TEST(Membership, AnotherVersionEndsAJobThatGathers) {
  Membership members(4, timeout);
  members.hello(hello(2), start);
  const auto result = members.hello(hello(1, 1, 4, "a", "2"), start);
  EXPECT_EQ(result.verdict, Verdict::contradicted);
  EXPECT_EQ(result.why, "rank 1 has version 2 where rank 2 has 1");
}

// Its timeouts cannot be read.
TEST(Membership, AFirstRankWithAnotherWireFormatIsRefused) {
  Membership members(4, timeout);
  auto frame = hello(2).frame();
  frame.at(sizeof(FrameHeader)) = 77;  // the wire version
  const auto result = members.hello(Hello::from_body(frame.substr(sizeof(FrameHeader))), start);
  EXPECT_EQ(result.verdict, Verdict::refused);
  EXPECT_THAT(result.why, HasSubstr("rank 2 has version 1 (wire format 77), the coordinator has wire format 3"));
  EXPECT_FALSE(members.has_begun());
}

TEST(Membership, AnotherJobIsRefusedAndEndsNothing) {
  auto members = two_nodes();
  EXPECT_EQ(members.hello(hello(1, 2, 5), start).verdict, Verdict::refused);
  EXPECT_EQ(members.hello(hello(1, 2, 4, "a", "2"), start).verdict, Verdict::refused);
  EXPECT_EQ(members.hello(hello(5, 2, 6), start).verdict, Verdict::refused);
  EXPECT_EQ(members.hello(hello(4), start).verdict, Verdict::refused);
  EXPECT_EQ(members.hello(hello(-1), start).verdict, Verdict::refused);
}

TEST(Membership, ARankIsThereOnce) {
  auto members = two_nodes();
  const auto result = members.hello(hello(1, 2), start);
  EXPECT_EQ(result.verdict, Verdict::refused);
  EXPECT_THAT(result.why, HasSubstr("rank 1 is in the job already"));
  EXPECT_EQ(members.hello(hello(1, 1), start).verdict, Verdict::resumed);
}

TEST(Membership, AClosedConnectionIsAnExit) {
  auto members = two_nodes();
  EXPECT_TRUE(members.disconnected(1, Disconnect::closed, start));
  EXPECT_EQ(members.hello(hello(1, 1), start).verdict, Verdict::refused) << "an exit is final";
  EXPECT_EQ(members.hello(hello(1, 2), start).verdict, Verdict::not_yet)
      << "for a new process: until no rank is present";
}

TEST(Membership, ANewProcessOfARankThatHasLeftComesAgainLater) {
  auto members = two_nodes();
  EXPECT_TRUE(members.leave(1));
  EXPECT_EQ(members.hello(hello(1, 2), start).verdict, Verdict::not_yet);
  EXPECT_EQ(members.hello(hello(1, 2, 3), start).verdict, Verdict::not_yet) << "also with another world size";
}

Hello of_attempt(int restart, int rank, std::uint64_t key) {
  auto later = hello(rank, key);
  later.member.restart = restart;
  return later;
}

TEST(Membership, ALaterAttemptWaitsForTheEndOfAnEarlierOne) {
  Membership members(4, timeout);
  for (int rank = 0; rank < 3; ++rank) members.hello(of_attempt(1, rank, 1), start);
  const Member absent = of_attempt(2, 3, 2).member;
  EXPECT_TRUE(members.replaces_absent(absent));
  EXPECT_FALSE(members.replaces_absent(of_attempt(1, 3, 2).member)) << "the awaited process";
  EXPECT_FALSE(members.replaces_absent(of_attempt(2, 2, 2).member)) << "a present rank may belong to another job";
  EXPECT_FALSE(members.replaces_absent(of_attempt(2, 4, 2).member));
  auto other_job = absent;
  other_job.world_size = 5;
  EXPECT_FALSE(members.replaces_absent(other_job));
  EXPECT_EQ(members.hello(of_attempt(2, 2, 2), start).verdict, Verdict::not_yet);
  members.process_exited(3);
  EXPECT_EQ(members.hello(of_attempt(2, 3, 2), start).verdict, Verdict::not_yet);
  EXPECT_FALSE(members.replaces_absent(absent)) << "the failure is known";
}

TEST(Membership, AnEarlierAttemptIsRefusedAndEndsNothing) {
  Membership members(4, timeout);
  members.hello(of_attempt(1, 0, 1), start);
  const auto result = members.hello(of_attempt(0, 1, 1), start);
  EXPECT_EQ(result.verdict, Verdict::refused);
  EXPECT_EQ(result.why, "rank 0 has been restarted after a failure (restart 1), and rank 1 belongs to restart 0");
  EXPECT_EQ(members.hello(of_attempt(1, 1, 1), start).verdict, Verdict::accepted);
}

TEST(Membership, AResetIsAnExitUnlessTheClientComesBack) {
  auto members = two_nodes();
  EXPECT_FALSE(members.disconnected(1, Disconnect::reset, start));
  EXPECT_FALSE(members.disconnected(2, Disconnect::reset, start));
  EXPECT_THAT(members.judge(start + Milliseconds(49), yes), IsEmpty());
  EXPECT_EQ(members.hello(hello(1, 1), start).verdict, Verdict::resumed);
  EXPECT_EQ(members.hello(hello(2, 2, 4, "b"), start).verdict, Verdict::not_yet);  // the rank's next process
  const auto failed = members.judge(start + Milliseconds(50), yes);
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_THAT(failed[0].ranks, ElementsAre(2));
  EXPECT_EQ(failed[0].cause, Cause::exited);
}

TEST(Membership, ANetworkErrorIsAFailureAfterTheTimeout) {
  auto members = two_nodes();
  members.disconnected(1, Disconnect::network_error, start);
  const auto later = start + timeout;
  for (const int rank : {0, 2, 3}) members.heard_from(rank, later);
  EXPECT_TRUE(members.judge(start + Milliseconds(1999), yes).empty());
  const auto warned = members.judge(start + Milliseconds(2000), yes);
  ASSERT_EQ(warned.size(), 1U);
  EXPECT_TRUE(warned[0].is_warning);
  const auto failed = members.judge(later, yes);
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0].cause, Cause::unreachable);
  EXPECT_FALSE(failed[0].is_warning);
}

TEST(Membership, AStoppedRankIsWarnedOfOnceAndFailsAtTheTimeout) {
  auto members = two_nodes();
  const auto at = [&](Milliseconds time) {
    for (const int rank : {0, 2, 3}) members.heard_from(rank, start + time);
    return members.judge(start + time, yes);
  };
  EXPECT_THAT(at(Milliseconds(1999)), IsEmpty());
  auto found = at(Milliseconds(2000));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].ranks, ElementsAre(1));
  EXPECT_EQ(found[0].cause, Cause::stopped);
  EXPECT_TRUE(found[0].is_warning);
  EXPECT_THAT(at(Milliseconds(14999)), IsEmpty());
  found = at(timeout);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].cause, Cause::stopped);
  EXPECT_FALSE(found[0].is_warning);
  EXPECT_THAT(at(timeout * 3), IsEmpty());
}

TEST(Membership, ARankThatContinuesIsWarnedOfAgain) {
  auto members = two_nodes();
  for (int stop = 1; stop <= 2; ++stop) {
    const auto begin = start + stop * Milliseconds(10000);
    for (int rank = 0; rank < 4; ++rank) members.heard_from(rank, begin);
    for (const int rank : {0, 2, 3}) members.heard_from(rank, begin + Milliseconds(2500));
    EXPECT_EQ(members.judge(begin + Milliseconds(2500), yes).size(), 1U);
  }
}

TEST(Membership, ANodeThatIsCutIsOneEvent) {
  auto members = two_nodes();
  members.heard_from(3, start + Milliseconds(200));  // its last heartbeat was a little later
  for (const int rank : {0, 1}) members.heard_from(rank, start + timeout);
  const auto found = members.judge(start + timeout, no);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].ranks, ElementsAre(2, 3));
  EXPECT_EQ(found[0].cause, Cause::unreachable);
  EXPECT_FALSE(found[0].is_warning);
}

TEST(Membership, AStalledCoordinatorFindsNoRankLate) {
  auto members = two_nodes();
  members.disconnected(1, Disconnect::reset, start);
  members.stalled(std::chrono::hours(1), start + std::chrono::hours(1));
  EXPECT_THAT(members.judge(start + std::chrono::hours(1) + Milliseconds(49), yes), IsEmpty());
}

// The coordinator reads what came during the stall before it notices the stall.
TEST(Membership, AStallIsNotCreditedToWhatIsReadAfterIt) {
  auto members = two_nodes();
  const auto woke = start + std::chrono::hours(1);
  members.disconnected(1, Disconnect::reset, woke);
  members.heard_from(2, woke);
  members.stalled(std::chrono::hours(1), woke);
  const auto exited = members.judge(woke + Milliseconds(50), yes);
  ASSERT_EQ(exited.size(), 1U);
  EXPECT_THAT(exited[0].ranks, ElementsAre(1));
  EXPECT_EQ(exited[0].cause, Cause::exited);
  const auto late = members.judge(woke + Milliseconds(2000), yes);
  ASSERT_EQ(late.size(), 2U);
  EXPECT_THAT(late[1].ranks, ElementsAre(2, 3));
}

TEST(Membership, ManyRanksSendRarelyAndAreWaitedForLonger) {
  EXPECT_EQ(Membership(64, timeout).interval(), Milliseconds(256));
  EXPECT_EQ(Membership(512, timeout).interval(), Milliseconds(2048));
  EXPECT_EQ(Membership(2, Milliseconds(400)).interval(), Milliseconds(100));
  Membership members(512, timeout);
  members.hello(hello(0, 1, 512), start);
  EXPECT_THAT(members.judge(start + Milliseconds(3700), yes), IsEmpty());
  EXPECT_EQ(members.judge(start + Milliseconds(3800), yes).size(), 1U);
}

// ---- all sequences of events

// Two ranks on two nodes. After each sequence the promises of the table in membership.h must hold.
enum class Event {
  hello,
  hello_again,
  hello_twin,
  heard,
  leave,
  close,
  reset,
  network_error,
  exit,
  pass,
  stall,
  count
};

struct Model {  // of one rank, in other words than the code
  bool has_come = false;
  bool has_left = false;
  bool has_failed = false;
  bool is_connected = false;
  bool was_reset = false;
  int silent_ms = 0;  // since the last heartbeat or hello
  int disconnected_ms = 0;
};

struct Trial {
  Membership members{2, timeout};
  Model model;
  Time time = start;
  int failures = 0;
  int warnings = 0;

  void judge() {
    for (const auto& failed : members.judge(time, yes)) {
      for (const int rank : failed.ranks) {
        ASSERT_EQ(rank, 0) << "the other rank sends heartbeats";
        if (failed.is_warning) {
          ++warnings;
          ASSERT_GE(model.silent_ms, 2000) << "a warning comes at 2 s";
        } else {
          ++failures;
          const bool late = model.silent_ms >= 15000;
          const bool gone = !model.is_connected && model.was_reset && model.disconnected_ms >= 50;
          ASSERT_TRUE(late || gone) << "a failure has a reason";
          ASSERT_EQ(failed.cause == Cause::exited, gone);
          model.has_failed = true;
        }
      }
    }
    const bool is_active = model.has_come && !model.has_left && !model.has_failed;
    if (is_active) {
      ASSERT_LT(model.silent_ms, 15000) << "no failure is missed";
      ASSERT_FALSE(!model.is_connected && model.was_reset && model.disconnected_ms >= 50);
    }
  }

  void apply(Event event) {
    const bool is_active = model.has_come && !model.has_left && !model.has_failed;
    switch (event) {
      case Event::hello:
      case Event::hello_again: {
        const auto verdict = members.hello(hello(0, 1, 2, "a"), time).verdict;
        const bool is_welcome = !model.has_left && !model.has_failed;
        ASSERT_EQ(verdict, !is_welcome      ? (model.has_come ? Verdict::refused : Verdict::not_yet)
                           : model.has_come ? Verdict::resumed
                                            : Verdict::accepted);
        if (!is_welcome) return;
        model = {.has_come = true, .is_connected = true};
        return;
      }
      case Event::hello_twin: {
        if (!model.has_come && !model.has_failed) return;
        ASSERT_EQ(members.hello(hello(0, 2, 2, "a"), time).verdict,
                  model.has_left || model.has_failed || !model.is_connected ? Verdict::not_yet : Verdict::refused);
        return;
      }
      case Event::heard:
        members.heard_from(0, time);
        if (is_active && model.is_connected) model.silent_ms = 0;
        return;
      case Event::leave:
        ASSERT_EQ(members.leave(0), is_active);
        model.has_left = model.has_left || is_active;
        return;
      case Event::close:
        ASSERT_EQ(members.disconnected(0, Disconnect::closed, time), is_active && model.is_connected);
        if (is_active && model.is_connected) fail();
        return;
      case Event::reset:
      case Event::network_error:
        ASSERT_FALSE(
            members.disconnected(0, event == Event::reset ? Disconnect::reset : Disconnect::network_error, time));
        if (!is_active || !model.is_connected) return;
        model.is_connected = false;
        model.was_reset = event == Event::reset;
        model.disconnected_ms = 0;
        return;
      case Event::exit:
        ASSERT_EQ(members.process_exited(0), !model.has_left && !model.has_failed);
        if (!model.has_left && !model.has_failed) fail();
        return;
      case Event::pass:  // 8 s, in steps in which the other rank sends heartbeats
        for (int step = 0; step < 32; ++step) {
          time += Milliseconds(250);
          model.silent_ms += 250;
          model.disconnected_ms += 250;
          members.heard_from(1, time);
          judge();
          if (testing::Test::HasFatalFailure()) return;
        }
        return;
      case Event::stall:
        time += Milliseconds(60000);
        members.stalled(Milliseconds(60000), time);
        judge();
        return;
      case Event::count:
        return;
    }
  }

  void fail() {
    model.has_failed = true;
    ++failures;
  }
};

TEST(Membership, AllSequencesOfFiveEventsKeepThePromises) {
  std::vector<Event> sequence;
  long trials = 0;
  const std::function<void(const Trial&, int)> extend = [&](const Trial& trial, int depth) {
    ++trials;
    if (depth == 0) return;
    for (int event = 0; event < static_cast<int>(Event::count); ++event) {
      if (static_cast<Event>(event) == Event::hello_again && !trial.model.has_come) continue;
      auto next = trial;
      sequence.push_back(static_cast<Event>(event));
      next.apply(static_cast<Event>(event));
      ASSERT_LE(next.failures, 1) << "a rank fails once";
      ASSERT_FALSE(next.model.has_left && next.model.has_failed);
      ASSERT_EQ(next.members.has_ended(0), next.model.has_left || next.model.has_failed);
      if (testing::Test::HasFatalFailure()) {
        std::string text;
        for (const auto each : sequence) text += std::to_string(static_cast<int>(each)) + " ";
        FAIL() << "after the events " << text;
      }
      extend(next, depth - 1);
      if (testing::Test::HasFatalFailure()) return;
      sequence.pop_back();
    }
  };
  Trial first;
  first.members.hello(hello(1, 7, 2, "b"), start);
  extend(first, 5);
  EXPECT_GT(trials, 100'000);
}

}  // namespace
}  // namespace tutti::coordinator::membership_test
