#include "tutti/core/environment.h"

#include <gtest/gtest.h>

#include <map>

#include "tutti/core/error.h"

namespace tutti::environment_test {
namespace {

using Variables = std::map<std::string, std::string>;

Environment read(const Variables& variables) {
  return read_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

/// Rank 5 of 2 nodes with 4 ranks each, as torchrun sets it.
Variables torchrun() {
  return {{"RANK", "5"},       {"WORLD_SIZE", "8"},       {"LOCAL_RANK", "1"},         {"LOCAL_WORLD_SIZE", "4"},
          {"GROUP_RANK", "1"}, {"GROUP_WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "12345"},
          {"ROLE_RANK", "5"},  {"ROLE_NAME", "default"},  {"ROLE_WORLD_SIZE", "8"},    {"OMP_NUM_THREADS", "1"}};
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::vector<std::string>& names) {
  for (const auto& name : names) variables.erase(name);
  return variables;
}

/// The message of the UsageError. The test fails if there is none, or if it has more than one line.
std::string complaint_about(const Variables& variables) {
  try {
    read(variables);
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << "no UsageError";
  return "";
}

void expect_complaint(const Variables& variables, const std::vector<std::string>& parts) {
  const auto message = complaint_about(variables);
  for (const auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
}

TEST(Environment, IsOneProcessWithoutALauncher) {
  EXPECT_EQ(read({}), Environment{});
  EXPECT_EQ(read({}).launcher, "none");
}

TEST(Environment, IgnoresOtherVariablesWithoutRankAndWorldSize) {
  EXPECT_EQ(read({{"LOCAL_RANK", "3"}, {"MASTER_PORT", "x"}}), Environment{});
}

TEST(Environment, ReadsTorchrunsVariables) {
  Environment expected;
  expected.rank = 5;
  expected.world_size = 8;
  expected.local_rank = 1;
  expected.local_world_size = 4;
  expected.node_rank = 1;
  expected.num_nodes = 2;
  expected.master_addr = "10.0.0.7";
  expected.master_port = 12345;
  expected.launcher = "torchrun";
  EXPECT_EQ(read(torchrun()), expected);
}

TEST(Environment, AcceptsUnevenNodesIfAllVariablesAreSet) {
  const auto uneven = read(with(torchrun(), {{"RANK", "2"},
                                             {"WORLD_SIZE", "3"},
                                             {"LOCAL_RANK", "0"},
                                             {"LOCAL_WORLD_SIZE", "1"},
                                             {"GROUP_RANK", "1"},
                                             {"GROUP_WORLD_SIZE", "2"}}));
  EXPECT_EQ(uneven.local_world_size, 1);
  EXPECT_EQ(uneven.node_rank, 1);
}

TEST(Environment, DefaultsToOneNode) {
  const auto one_node = read({{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(one_node.local_rank, 2);
  EXPECT_EQ(one_node.local_world_size, 3);
  EXPECT_EQ(one_node.node_rank, 0);
  EXPECT_EQ(one_node.num_nodes, 1);
}

TEST(Environment, DeducesEqualNodesFromGroupOrLocalVariables) {
  const auto expected = read(torchrun());
  EXPECT_EQ(read(without(torchrun(), {"LOCAL_RANK", "LOCAL_WORLD_SIZE"})), expected);
  EXPECT_EQ(read(without(torchrun(), {"GROUP_RANK", "GROUP_WORLD_SIZE"})), expected);
}

TEST(Environment, RefusesToGuessUnevenNodes) {
  const auto seven = with(torchrun(), {{"WORLD_SIZE", "7"}});
  expect_complaint(without(seven, {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}), {"WORLD_SIZE=7", "set LOCAL_RANK"});
  expect_complaint(without(seven, {"GROUP_RANK", "GROUP_WORLD_SIZE"}), {"WORLD_SIZE=7", "set GROUP_RANK"});
  expect_complaint(without(with(torchrun(), {{"GROUP_RANK", "0"}}), {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}),
                   {"GROUP_RANK=0", "RANK=5"});
}

TEST(Environment, NeedsNoMasterForOneRank) {
  const auto alone = read({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(alone.master_addr, "127.0.0.1");
  EXPECT_EQ(alone.launcher, "torchrun");
}

TEST(Environment, NeedsAMasterForMoreRanks) {
  expect_complaint(without(torchrun(), {"MASTER_ADDR"}), {"MASTER_ADDR is not set", "WORLD_SIZE=8"});
  expect_complaint(with(torchrun(), {{"MASTER_ADDR", ""}}), {"MASTER_ADDR"});
  expect_complaint(with(torchrun(), {{"MASTER_ADDR", "[::1]"}}), {"MASTER_ADDR='[::1]': write an IPv6 address"});
  expect_complaint(without(torchrun(), {"MASTER_PORT"}), {"MASTER_PORT is not set", "WORLD_SIZE=8"});
}

TEST(Environment, RefusesOneOfAPair) {
  expect_complaint({{"RANK", "1"}}, {"RANK=1", "WORLD_SIZE is not"});
  expect_complaint({{"WORLD_SIZE", "2"}}, {"WORLD_SIZE=2", "RANK is not"});
  expect_complaint(without(torchrun(), {"LOCAL_RANK"}), {"LOCAL_WORLD_SIZE=4", "LOCAL_RANK is not"});
  expect_complaint(without(torchrun(), {"GROUP_WORLD_SIZE"}), {"GROUP_RANK=1", "GROUP_WORLD_SIZE is not"});
}

TEST(Environment, RefusesInvalidNumbers) {
  for (const std::string bad : {"", "x", "-1", "1.5", "3 ", " 3", "+3", "0x3", "99999999999999999999"}) {
    expect_complaint(with(torchrun(), {{"RANK", bad}}), {"RANK='" + bad + "'", "whole number"});
  }
  expect_complaint(with(torchrun(), {{"LOCAL_WORLD_SIZE", "four"}}), {"LOCAL_WORLD_SIZE='four'"});
  expect_complaint(with(torchrun(), {{"TORCHELASTIC_RESTART_COUNT", "often"}}), {"TORCHELASTIC_RESTART_COUNT"});
}

TEST(Environment, RefusesRanksOutOfRange) {
  expect_complaint(with(torchrun(), {{"RANK", "8"}}), {"RANK=8", "WORLD_SIZE=8", "less than 8"});
  expect_complaint(with(torchrun(), {{"LOCAL_RANK", "4"}}), {"LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4"});
  expect_complaint(with(torchrun(), {{"GROUP_RANK", "2"}}), {"GROUP_RANK=2", "GROUP_WORLD_SIZE=2"});
}

TEST(Environment, RefusesSizesThatContradict) {
  expect_complaint(with(torchrun(), {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE=0", "at least 1"});
  expect_complaint(with(torchrun(), {{"LOCAL_WORLD_SIZE", "9"}}), {"LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8"});
  expect_complaint(with(torchrun(), {{"GROUP_WORLD_SIZE", "9"}}), {"GROUP_WORLD_SIZE=9", "WORLD_SIZE=8"});
}

TEST(Environment, RefusesInvalidPorts) {
  for (const std::string bad : {"0", "65536", "http"}) {
    expect_complaint(with(torchrun(), {{"MASTER_PORT", bad}}), {"MASTER_PORT"});
  }
  EXPECT_EQ(read(with(torchrun(), {{"MASTER_PORT", "65535"}})).master_port, 65535);
}

TEST(Environment, KnowsWhetherTheAgentServesTheStore) {
  for (const std::string yes : {"True", "true", "TRUE", "1"}) {
    EXPECT_TRUE(read(with(torchrun(), {{"TORCHELASTIC_USE_AGENT_STORE", yes}})).agent_store) << yes;
  }
  for (const std::string no : {"False", "0", ""}) {
    EXPECT_FALSE(read(with(torchrun(), {{"TORCHELASTIC_USE_AGENT_STORE", no}})).agent_store) << no;
  }
}

TEST(Environment, PrefersThePortThatTheLauncherHolds) {
  EXPECT_EQ(read(with(torchrun(), {{"TUTTI_MASTER_PORT", "777,12345"}})).master_port, 777);
  EXPECT_EQ(read(with(torchrun(), {{"TUTTI_MASTER_PORT", "777,1"}})).master_port, 12345);
  for (const char* wrong : {"1", "1,", ",1", "1,2,3", "x,1", "0,1", "1,70000"}) {
    expect_complaint(with(torchrun(), {{"TUTTI_MASTER_PORT", wrong}}), {"TUTTI_MASTER_PORT"});
  }
}

TEST(Environment, ReadsTheRestartCount) {
  EXPECT_EQ(read(with(torchrun(), {{"TORCHELASTIC_RESTART_COUNT", "3"}})).restart_count, 3);
}

}  // namespace
}  // namespace tutti::environment_test
