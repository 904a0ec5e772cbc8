// Ranks: none. Diagnoses of made-up records.
#include "flight/diagnose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::diagnose_test {
namespace {

using flight::EntryState;
using flight::RankRecord;
using flight::RecordedOperation;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t second = 1'000'000'000;

struct Call {
  std::uint64_t number;
  EntryState state = EntryState::completed;
  std::string text = "barrier()";
  std::string communicator = "job";
  int group_size = 3;
  std::string call_site = "";
};

// Calls start 1 s apart and take 0.1 s.
RankRecord rank_with(int rank, const std::vector<Call>& calls, bool running = true) {
  RankRecord record{
      .rank = rank, .world_size = 3, .process = 100 + rank, .running = running, .host = "node", .program = "train"};
  std::uint64_t serial = 0;
  for (const auto& call : calls) {
    const auto time = static_cast<std::int64_t>(++serial) * second;
    const bool over = call.state == EntryState::completed || call.state == EntryState::failed;
    record.operations.push_back({.text = call.text,
                                 .communicator = call.communicator,
                                 .serial = serial,
                                 .operation = call.number,
                                 .group_size = call.group_size,
                                 .call_site = call.call_site,
                                 .state = call.state,
                                 .called = time,
                                 .started = call.state == EntryState::scheduled ? 0 : time,
                                 .ended = over ? time + second / 10 : 0});
  }
  return record;
}

TEST(Diagnose, ReportsThatNoRankIsBlocked) {
  const auto text =
      flight::diagnose({rank_with(0, {{0}, {1}}), rank_with(1, {{0}, {1}}), rank_with(2, {{0}, {1}})}, 5 * second);
  EXPECT_EQ(text,
            "3 ranks; all processes run.\n"
            "No rank waits for another. The last operation: barrier() (operation 1 of job), 2.9 s ago.\n");
}

TEST(Diagnose, NamesTheAbsentRankAndItsLastCall) {
  const Call pending{.number = 1, .state = EntryState::started, .text = "all_reduce('loss')"};
  const auto text =
      flight::diagnose({rank_with(0, {{0}, pending}), rank_with(1, {{0}}), rank_with(2, {{0}, pending})}, 14 * second);
  EXPECT_EQ(text,
            "3 ranks; all processes run.\n"
            "Ranks 0 and 2 are in all_reduce('loss') (operation 1 of job) for 12.0 s.\n"
            "Rank 1 did not enter the call.\n"
            "Rank 1 last called barrier() (operation 0 of job), done 12.9 s ago.\n");
}

TEST(Diagnose, NamesARankWithoutARecord) {
  const Call pending{.number = 0, .state = EntryState::started};
  EXPECT_THAT(flight::diagnose({rank_with(0, {pending}), rank_with(2, {pending})}, 14 * second),
              HasSubstr("No record here of rank 1.\n"));
}

TEST(Diagnose, ARankThatNeverUsedTheCommunicatorIsAbsent) {
  const Call pending{.number = 0, .state = EntryState::started, .communicator = "job/0-ddp"};
  const auto text =
      flight::diagnose({rank_with(0, {pending}), rank_with(1, {pending}), rank_with(2, {{0}})}, 4 * second);
  EXPECT_THAT(text, AllOf(HasSubstr("Rank 2 did not enter the call."),
                          HasSubstr("Rank 2 has called no operation of its communicator.")));
}

TEST(Diagnose, RanksOutsideTheGroupAreNotAbsent) {
  const Call pending{.number = 0, .state = EntryState::started, .communicator = "job/0-split", .group_size = 2};
  EXPECT_THAT(flight::diagnose({rank_with(0, {pending}), rank_with(1, {pending}), rank_with(2, {{0}})}, 4 * second),
              Not(HasSubstr("did not enter")));
}

TEST(Diagnose, NamesTheBlockedRanksWhereAllEntered) {
  const Call pending{.number = 0, .state = EntryState::started};
  const auto text =
      flight::diagnose({rank_with(0, {pending}), rank_with(1, {pending}), rank_with(2, {pending})}, 4 * second);
  EXPECT_THAT(text, AllOf(HasSubstr("Ranks 0, 1 and 2 are in barrier()"), Not(HasSubstr("did not enter"))));
}

TEST(Diagnose, TellsAnExitedRankFromRanksThatTimedOut) {
  const Call exited{.number = 1, .state = EntryState::started};
  const Call failed{.number = 1, .state = EntryState::failed};
  const auto text = flight::diagnose(
      {rank_with(0, {{0}, failed}), rank_with(1, {{0}, exited}, false), rank_with(2, {{0}, failed})}, 14 * second);
  EXPECT_THAT(text, AllOf(HasSubstr("the processes of rank 1 have ended, those of ranks 0 and 2 run"),
                          HasSubstr("Rank 1 ended inside barrier() (operation 1 of job).\n"),
                          HasSubstr("Ranks 0 and 2 failed in barrier() (operation 1 of job) after 0.1 s.\n")));
}

TEST(Diagnose, TellsALateRankFromRanksThatTimedOut) {
  const Call failed{.number = 1, .state = EntryState::failed};
  auto late = rank_with(1, {{0}, failed});
  late.operations.back().called += second;
  late.operations.back().ended += second;
  const auto text = flight::diagnose({rank_with(0, {{0}, failed}), late, rank_with(2, {{0}, failed})}, 14 * second);
  EXPECT_THAT(text, HasSubstr("Ranks 0 and 2 failed in barrier() (operation 1 of job) after 0.1 s.\n"
                              "Rank 1 entered the call only after that.\n"));
}

// The group stays usable after a MismatchError.
TEST(Diagnose, AFailureThatTheProgramCaughtDoesNotHideALaterHang) {
  const Call caught{.number = 1, .state = EntryState::failed};
  const Call pending{.number = 3, .state = EntryState::started};
  const auto waiting = rank_with(0, {{0}, caught, {2}, pending});
  const auto absent = rank_with(1, {{0}, caught, {2}});
  EXPECT_FALSE(flight::has_failed_call(waiting));
  EXPECT_FALSE(flight::has_failed_call(absent));
  EXPECT_TRUE(flight::has_failed_call(rank_with(1, {{0}, caught})));
  const auto text = flight::diagnose({waiting, absent, rank_with(2, {{0}, caught, {2}, pending})}, 14 * second);
  EXPECT_THAT(text, AllOf(HasSubstr("Ranks 0 and 2 are in barrier() (operation 3 of job) for 10.0 s.\n"),
                          HasSubstr("Rank 1 did not enter the call.\n"), Not(HasSubstr("failed"))));
}

// Calls in flight together: one completed before the failure.
TEST(Diagnose, ACallThatWasMadeBeforeAFailureDoesNotHideIt) {
  auto record = rank_with(0, {{0}, {.number = 1, .state = EntryState::failed}, {2}});
  record.operations[1].ended = 5 * second;
  EXPECT_TRUE(flight::has_failed_call(record));
  EXPECT_THAT(flight::diagnose({record}, 14 * second), HasSubstr("Rank 0 failed in barrier() (operation 1 of job)"));
}

TEST(Diagnose, ReportsTheFirstMismatch) {
  const Call other{.number = 1, .text = "broadcast()"};
  const auto text = flight::diagnose(
      {rank_with(0, {{0}, {1}, {2}}), rank_with(1, {{0}, other, {2}}), rank_with(2, {{0}, {1}, {2}})}, 9 * second);
  EXPECT_THAT(
      text,
      HasSubstr("First difference: operation 1 of job is barrier() on ranks 0 and 2 and broadcast() on rank 1.\n"));
}

// Each rank leaves its loop in another way.
TEST(Diagnose, CallsAfterAFailureAreNoMismatch) {
  const Call failed{.number = 1, .state = EntryState::failed};
  const Call other{.number = 2, .state = EntryState::failed, .text = "broadcast()"};
  const Call same{.number = 2, .state = EntryState::failed};
  EXPECT_THAT(flight::diagnose({rank_with(0, {{0}, failed, other}), rank_with(1, {{0}, failed, same})}, 9 * second),
              Not(HasSubstr("First difference")));
  const Call different{.number = 1, .state = EntryState::failed, .text = "broadcast()"};
  EXPECT_THAT(flight::diagnose({rank_with(0, {{0}, failed}), rank_with(1, {{0}, different})}, 9 * second),
              HasSubstr("First difference: operation 1 of job is barrier() on rank 0 and broadcast() on rank 1.\n"));
}

// A program makes a second group of all ranks, uses it and destroys it.
TEST(Diagnose, TellsTwoGroupsOfAllRanksApart) {
  std::vector<RankRecord> records{rank_with(0, {{0}, {1, EntryState::started}}), rank_with(1, {{0}}),
                                  rank_with(2, {{0}})};
  for (int rank = 0; rank < 3; ++rank) {
    const Call sum{.number = 0, .text = "all_reduce()", .communicator = "job#2"};
    records.push_back(rank_with(rank, {sum}, /*running=*/false));
  }
  const auto text = flight::diagnose(records, 9 * second);
  EXPECT_THAT(text, AllOf(HasSubstr("3 ranks; all processes run.\n"),
                          HasSubstr("Ranks 1 and 2 did not enter the call."), Not(HasSubstr("First difference"))));
}

TEST(Diagnose, ReportsCallSites) {
  const Call first{.number = 0, .call_site = "train.cpp:8"};
  const Call saves{.number = 1,
                   .state = EntryState::started,
                   .text = "all_gather_object('save_state')",
                   .call_site = "train.cpp:42"};
  Call elsewhere = saves;
  elsewhere.call_site = "eval.cpp:7";
  EXPECT_THAT(flight::diagnose({rank_with(0, {first, saves}), rank_with(1, {first}), rank_with(2, {first, elsewhere})},
                               14 * second),
              AllOf(HasSubstr("Ranks 0 and 2 are in all_gather_object('save_state') (operation 1 of job, eval.cpp:7 "
                              "and train.cpp:42) for 12.0 s.\n"),
                    HasSubstr("Rank 1 last called barrier() (operation 0 of job, train.cpp:8), done")));
  const Call other{.number = 1, .text = "broadcast()", .call_site = "train.cpp:50"};
  EXPECT_THAT(flight::diagnose({rank_with(0, {saves}), rank_with(1, {other})}, 14 * second),
              HasSubstr("is all_gather_object('save_state') on rank 0 (train.cpp:42) and broadcast() on rank 1 "
                        "(train.cpp:50).\n"));
  EXPECT_THAT(flight::last_operations(rank_with(0, {first}), 1, 5 * second),
              HasSubstr("barrier() (operation 0 of job, train.cpp:8), called"));
}

TEST(Diagnose, TimesOfAnEndedJobCountFromItsLastEntry) {
  const Call pending{.number = 1, .state = EntryState::started};
  const auto text =
      flight::diagnose({rank_with(0, {{0}, pending}, false), rank_with(1, {{0}}, false), rank_with(2, {{0}}, false)},
                       1'000'000 * second);
  EXPECT_THAT(text, AllOf(HasSubstr("all processes have ended"), HasSubstr("Ranks 1 and 2 did not enter the call."),
                          HasSubstr("done 0.9 s ago")));
}

TEST(Diagnose, ManyRanksAreCountedAfterTheFirstFew) {
  std::vector<RankRecord> records;
  for (int rank = 0; rank < 40; ++rank) {
    records.push_back(rank_with(rank, {{.number = 0, .state = EntryState::started, .group_size = 40}}));
    records.back().world_size = 40;
  }
  EXPECT_THAT(flight::diagnose(records, 4 * second), HasSubstr("14, 15 and 24 more are in"));
}

TEST(LastOperations, OneALine) {
  EXPECT_EQ(
      flight::last_operations(rank_with(0, {{0}, {1}, {.number = 2, .state = EntryState::scheduled}}), 2, 5 * second),
      "Rank 0 (train, process 100 on node):\n"
      "  barrier() (operation 1 of job), called 3.0 s ago, done after 0.1 s\n"
      "  barrier() (operation 2 of job), called 2.0 s ago, scheduled\n");
}

}  // namespace
}  // namespace tutti::diagnose_test
