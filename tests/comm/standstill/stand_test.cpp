// Whether ranks that wait can go on. Pure.
#include "comm/standstill/stand.h"

#include <gtest/gtest.h>

namespace tutti::test::stand_test {
namespace {

using comm::Stand;
using comm::standstill_of;

// A rank of a job with the channels "job" (of all) and "model" (of all), waiting in a call of one of them.
Stand stand_in(const std::string& channel, std::uint64_t number, std::uint64_t job_calls, std::uint64_t model_calls) {
  return {.waits = {{.channel = channel, .number = number, .text = channel == "job" ? "save" : "sum"}},
          .channels = {{"job", {.calls = job_calls, .members = {0, 1}}},
                       {"model", {.calls = model_calls, .members = {0, 1}}}}};
}

TEST(Stand, CallsOfDifferentChannelsCanNeverBeComplete) {
  // Rank 0 is in the third call of "job", rank 1 in the sixth of "model"; each has not made the other's.
  EXPECT_EQ(
      standstill_of({stand_in("job", 2, 3, 5), stand_in("model", 5, 2, 6)}),
      "called on some ranks only: rank 0 waits in save of 'job', which rank 1 has not called; rank 1 waits in sum of "
      "'model', which rank 0 has not called. No rank can go on.");
}

TEST(Stand, ACallThatAllHaveMadeMayEnd) {
  EXPECT_EQ(standstill_of({stand_in("job", 2, 3, 5), stand_in("job", 2, 3, 5)}), std::nullopt);
  // Rank 1 has left the call of "job" to the channel's thread and waits for its gradients, which rank 0 has not called.
  EXPECT_EQ(standstill_of({stand_in("job", 2, 3, 5), stand_in("model", 5, 3, 6)}), std::nullopt);
}

TEST(Stand, RanksThatWaitForTheSameCallAreNamedTogether) {
  Stand two = stand_in("model", 5, 2, 6);
  Stand one = stand_in("job", 2, 3, 5);
  for (Stand* stand : {&one, &two}) {
    for (auto& [name, channel] : stand->channels) channel.members = {0, 1, 2};
  }
  const auto text = standstill_of({two, one, two});
  ASSERT_TRUE(text);
  EXPECT_NE(text->find("ranks 0, 2 wait in sum of 'model', which rank 1 has not called"), std::string::npos) << *text;
  EXPECT_NE(text->find("rank 1 waits in save of 'job', which ranks 0, 2 have not called"), std::string::npos) << *text;
}

TEST(Stand, AChannelThatARankHasNotMadeYet) {
  Stand without = stand_in("job", 2, 3, 5);
  without.channels.erase("model");
  EXPECT_TRUE(standstill_of({without, stand_in("model", 0, 2, 1)}));
}

TEST(Stand, OneRankThatCanGoOnIsEnough) {
  Stand third = stand_in("job", 2, 3, 5);
  third.waits.clear();
  Stand none;
  EXPECT_EQ(standstill_of({stand_in("job", 2, 3, 5), stand_in("model", 5, 2, 6), third}), std::nullopt);
  EXPECT_EQ(standstill_of({none}), std::nullopt);
}

TEST(Stand, SurvivesItsText) {
  Stand stand = stand_in("job", 2, 3, 5);
  stand.changes = 77;
  stand.waits[0].text = "barrier 'it\"s' (operation 2)";
  const auto read = Stand::from_text(stand.to_text());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->to_text(), stand.to_text());
  EXPECT_EQ(read->waits, stand.waits);
}

TEST(Stand, WhatNoRankHasWrittenIsNone) {
  for (const char* text :
       {"", "{}", "[]", R"({"changes":0,"waits":[["other",1,"x"]],"channels":{}})",
        R"({"changes":0,"waits":[["job",-1,7]],"channels":{"job":[1,[0]]}})", "\xff\xfe", "{\"changes\":"}) {
    EXPECT_FALSE(Stand::from_text(text)) << text;
  }
  // Members that the job does not have.
  Stand stand = stand_in("job", 2, 3, 5);
  stand.channels["job"].members = {0, 7};
  EXPECT_EQ(standstill_of({stand}), std::nullopt);
}

}  // namespace
}  // namespace tutti::test::stand_test
