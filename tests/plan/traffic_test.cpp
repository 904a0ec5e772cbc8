#include "plan/traffic.h"

#include <gtest/gtest.h>

namespace tutti::plan::traffic_test {
namespace {

TEST(Traffic, OfADirectSumIsAMessageToEach) {
  for (const int members : {2, 3, 8, 64, 65'536}) {
    const Messages messages = messages_of(Schedule::direct, members);
    EXPECT_EQ(messages.rounds, 1);
    EXPECT_EQ(messages.sent, members - 1);
    EXPECT_DOUBLE_EQ(messages.share, 1 - 1.0 / members);
  }
}

TEST(Traffic, OfHalvingGrowsWithTheLogarithm) {
  EXPECT_EQ(messages_of(Schedule::halving, 2).sent, 1);
  EXPECT_EQ(messages_of(Schedule::halving, 8).sent, 3);
  EXPECT_EQ(messages_of(Schedule::halving, 9).sent, 4);
  EXPECT_EQ(messages_of(Schedule::halving, 65'536).rounds, 16);
}

TEST(Traffic, HasTheSameBytesInEverySchedule) {
  for (const int members : {2, 3, 16, 1000}) {
    EXPECT_EQ(messages_of(Schedule::halving, members).share, messages_of(Schedule::direct, members).share);
  }
}

TEST(Traffic, OfOneMemberIsNone) {
  for (const Schedule schedule : {Schedule::direct, Schedule::halving}) {
    const Messages messages = messages_of(schedule, 1);
    EXPECT_EQ(messages.rounds, 0);
    EXPECT_EQ(messages.sent, 0);
    EXPECT_EQ(messages.share, 0);
  }
}

TEST(Traffic, OfHeadersGoesInRoundsAboveEightRanks) {
  EXPECT_EQ(exchange_rounds(1), 0);
  EXPECT_EQ(exchange_rounds(2), 1);
  EXPECT_EQ(exchange_rounds(8), 1);
  EXPECT_EQ(exchange_rounds(9), 4);
  EXPECT_EQ(exchange_rounds(65'536), 16);
}

TEST(Traffic, IsCarriedAsTheEnginesAreChosen) {
  EXPECT_EQ(carrier_for({.nodes = 1, .ranks_per_node = 1}), Carrier::nothing);
  EXPECT_EQ(carrier_for({.nodes = 1, .ranks_per_node = 3}), Carrier::shared_memory);
  EXPECT_EQ(carrier_for({.nodes = 4, .ranks_per_node = 1}), Carrier::messages);
  EXPECT_EQ(carrier_for({.nodes = 4, .ranks_per_node = 2}), Carrier::both);
  EXPECT_EQ(carrier_for({.nodes = 4, .ranks_per_node = 3}), Carrier::messages);
}

}  // namespace
}  // namespace tutti::plan::traffic_test
