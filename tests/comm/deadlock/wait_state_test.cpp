// Ranks: none. Whether blocked ranks can continue.
#include "comm/deadlock/wait_state.h"

#include <gtest/gtest.h>

namespace tutti::test::wait_state_test {
namespace {

using comm::find_deadlock;
using comm::WaitState;

// The state of a rank that waits in a call on one of the communicators "job" and "model", both of all ranks.
WaitState state_in(const std::string& communicator, std::uint64_t number, std::uint64_t job_calls,
                   std::uint64_t model_calls) {
  return {.pending_calls = {{.communicator = communicator,
                             .number = number,
                             .text = communicator == "job" ? "save" : "sum"}},
          .communicators = {{"job", {.calls = job_calls, .members = {0, 1}}},
                            {"model", {.calls = model_calls, .members = {0, 1}}}}};
}

TEST(WaitState, CallsOfDifferentCommunicatorsAreADeadlock) {
  // Rank 0 is in the third call on "job", rank 1 in the sixth call on "model". Neither rank has made the other's call.
  EXPECT_EQ(
      find_deadlock({state_in("job", 2, 3, 5), state_in("model", 5, 2, 6)}),
      "called on some ranks only: rank 0 waits in save of 'job', which rank 1 has not called; rank 1 waits in sum of "
      "'model', which rank 0 has not called. No rank can continue.");
}

TEST(WaitState, ACallThatAllRanksMadeIsNoDeadlock) {
  EXPECT_EQ(find_deadlock({state_in("job", 2, 3, 5), state_in("job", 2, 3, 5)}), std::nullopt);
  // Rank 1 has made the call on "job", which the queue thread runs, and waits in a call that rank 0 has not made.
  EXPECT_EQ(find_deadlock({state_in("job", 2, 3, 5), state_in("model", 5, 3, 6)}), std::nullopt);
}

TEST(WaitState, RanksBlockedInTheSameCallAreNamedTogether) {
  WaitState two = state_in("model", 5, 2, 6);
  WaitState one = state_in("job", 2, 3, 5);
  for (WaitState* state : {&one, &two}) {
    for (auto& [name, communicator] : state->communicators) communicator.members = {0, 1, 2};
  }
  const auto text = find_deadlock({two, one, two});
  ASSERT_TRUE(text);
  EXPECT_NE(text->find("ranks 0, 2 wait in sum of 'model', which rank 1 has not called"), std::string::npos) << *text;
  EXPECT_NE(text->find("rank 1 waits in save of 'job', which ranks 0, 2 have not called"), std::string::npos) << *text;
}

TEST(WaitState, ACommunicatorThatARankHasNotMadeYet) {
  WaitState without = state_in("job", 2, 3, 5);
  without.communicators.erase("model");
  EXPECT_TRUE(find_deadlock({without, state_in("model", 0, 2, 1)}));
}

TEST(WaitState, OneRunningRankMeansNoDeadlock) {
  WaitState third = state_in("job", 2, 3, 5);
  third.pending_calls.clear();
  WaitState none;
  EXPECT_EQ(find_deadlock({state_in("job", 2, 3, 5), state_in("model", 5, 2, 6), third}), std::nullopt);
  EXPECT_EQ(find_deadlock({none}), std::nullopt);
}

TEST(WaitState, SurvivesEncoding) {
  WaitState state = state_in("job", 2, 3, 5);
  state.changes = 77;
  state.pending_calls[0].text = "barrier 'it\"s' (operation 2)";
  const auto read = WaitState::from_text(state.to_text());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->to_text(), state.to_text());
  EXPECT_EQ(read->pending_calls, state.pending_calls);
}

TEST(WaitState, MalformedTextIsRejected) {
  for (const char* text :
       {"", "{}", "[]", R"({"changes":0,"waits":[["other",1,"x"]],"channels":{}})",
        R"({"changes":0,"waits":[["job",-1,7]],"channels":{"job":[1,[0]]}})", "\xff\xfe", "{\"changes\":"}) {
    EXPECT_FALSE(WaitState::from_text(text)) << text;
  }
  // A communicator with a member that the job does not have.
  WaitState state = state_in("job", 2, 3, 5);
  state.communicators["job"].members = {0, 7};
  EXPECT_EQ(find_deadlock({state}), std::nullopt);
}

}  // namespace
}  // namespace tutti::test::wait_state_test
