#include "plan/traffic.h"

#include <gtest/gtest.h>

namespace tutti::plan::traffic_test {
namespace {

TEST(Traffic, ADirectSumSendsOneMessageToEachMember) {
  for (const int members : {2, 3, 8, 64, 65'536}) {
    const Messages messages = messages_of(Schedule::direct, members);
    EXPECT_EQ(messages.steps, 1);
    EXPECT_EQ(messages.sent, members - 1);
    EXPECT_DOUBLE_EQ(messages.share, 1 - 1.0 / members);
  }
}

TEST(Traffic, HalvingSendsALogarithmicNumberOfMessages) {
  EXPECT_EQ(messages_of(Schedule::halving, 2).sent, 1);
  EXPECT_EQ(messages_of(Schedule::halving, 8).sent, 3);
  EXPECT_EQ(messages_of(Schedule::halving, 9).sent, 4);
  EXPECT_EQ(messages_of(Schedule::halving, 65'536).steps, 16);
}

TEST(Traffic, EveryScheduleSendsTheSameBytes) {
  for (const int members : {2, 3, 16, 1000}) {
    EXPECT_EQ(messages_of(Schedule::halving, members).share, messages_of(Schedule::direct, members).share);
  }
}

TEST(Traffic, OneMemberSendsNothing) {
  for (const Schedule schedule : {Schedule::direct, Schedule::halving}) {
    const Messages messages = messages_of(schedule, 1);
    EXPECT_EQ(messages.steps, 0);
    EXPECT_EQ(messages.sent, 0);
    EXPECT_EQ(messages.share, 0);
  }
}

TEST(Traffic, HeadersTakeSeveralStepsAboveEightRanks) {
  EXPECT_EQ(exchange_steps(1), 0);
  EXPECT_EQ(exchange_steps(2), 1);
  EXPECT_EQ(exchange_steps(8), 1);
  EXPECT_EQ(exchange_steps(9), 4);
  EXPECT_EQ(exchange_steps(65'536), 16);
}

TEST(Traffic, DependsOnTheBackend) {
  EXPECT_EQ(backend_for({.nodes = 1, .ranks_per_node = 1}), BackendChoice::none);
  EXPECT_EQ(backend_for({.nodes = 1, .ranks_per_node = 3}), BackendChoice::shared_memory);
  EXPECT_EQ(backend_for({.nodes = 4, .ranks_per_node = 1}), BackendChoice::messages);
  EXPECT_EQ(backend_for({.nodes = 4, .ranks_per_node = 2}), BackendChoice::hierarchical);
  EXPECT_EQ(backend_for({.nodes = 4, .ranks_per_node = 3}), BackendChoice::messages);
}

}  // namespace
}  // namespace tutti::plan::traffic_test
