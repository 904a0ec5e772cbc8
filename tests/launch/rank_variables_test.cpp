#include "launch/rank_variables.h"

#include <gtest/gtest.h>

#include "tutti/core/environment.h"

namespace tutti::rank_variables_test {
namespace {

const LaunchOptions two_nodes{
    .ranks_per_node = 3, .num_nodes = 2, .node_rank = 1, .master_addr = "node0", .master_port = 1234};
const JobVariables job{.master_port = 1234, .run_id = "id", .threads_per_rank = 4};

Environment environment_of(const Variables& variables) {
  return read_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(RankVariables, AreReadByReadEnvironment) {
  const auto environment = environment_of(rank_variables(two_nodes, job, 2, {}));
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.world_size, 6);
  EXPECT_EQ(environment.local_rank, 2);
  EXPECT_EQ(environment.local_world_size, 3);
  EXPECT_EQ(environment.node_rank, 1);
  EXPECT_EQ(environment.num_nodes, 2);
  EXPECT_EQ(environment.master_addr, "node0");
  EXPECT_EQ(environment.master_port, 1234);
  EXPECT_FALSE(environment.agent_store);
  EXPECT_EQ(environment.restart_count, 0);
}

TEST(RankVariables, HoldAllNamesOfTorchrun) {
  const auto variables = rank_variables(two_nodes, job, 0, {});
  const Variables expected{{"RANK", "3"},
                           {"WORLD_SIZE", "6"},
                           {"LOCAL_RANK", "0"},
                           {"LOCAL_WORLD_SIZE", "3"},
                           {"GROUP_RANK", "1"},
                           {"GROUP_WORLD_SIZE", "2"},
                           {"ROLE_RANK", "3"},
                           {"ROLE_NAME", "default"},
                           {"ROLE_WORLD_SIZE", "6"},
                           {"MASTER_ADDR", "node0"},
                           {"MASTER_PORT", "1234"},
                           {"TORCHELASTIC_RESTART_COUNT", "0"},
                           {"TORCHELASTIC_MAX_RESTARTS", "0"},
                           {"TORCHELASTIC_RUN_ID", "id"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                           {"TUTTI_FLIGHT_RECORDS", ""},
                           {"OMP_NUM_THREADS", "4"}};
  EXPECT_EQ(variables, expected);
}

TEST(RankVariables, ReplaceInheritedVariables) {
  const auto variables = rank_variables(
      two_nodes, job, 0, {{"RANK", "9"}, {"TUTTI_MASTER_PORT", "9,9"}, {"OMP_NUM_THREADS", "9"}, {"HOME", "/home"}});
  EXPECT_EQ(variables.at("RANK"), "3");
  EXPECT_EQ(variables.at("OMP_NUM_THREADS"), "9");
  EXPECT_EQ(variables.at("HOME"), "/home");
  EXPECT_FALSE(variables.contains("TUTTI_MASTER_PORT"));
}

TEST(RankVariables, NameTheFolderOfThisJobAndNotOfAnOuterJob) {
  auto recorded = job;
  recorded.record_folder = "/records/of/this";
  const auto variables = rank_variables(two_nodes, recorded, 0, {{"TUTTI_FLIGHT_RECORDS", "/outer"}});
  EXPECT_EQ(variables.at("TUTTI_FLIGHT_RECORDS"), "/records/of/this");
}

TEST(RankVariables, CountRestarts) {
  auto options = two_nodes;
  options.max_restarts = 3;
  auto restarted = job;
  restarted.restart_count = 2;
  const auto variables = rank_variables(options, restarted, 0, {});
  EXPECT_EQ(variables.at("TORCHELASTIC_RESTART_COUNT"), "2");
  EXPECT_EQ(variables.at("TORCHELASTIC_MAX_RESTARTS"), "3");
  EXPECT_EQ(environment_of(variables).restart_count, 2);
}

TEST(RankVariables, HoldTheSecretOfTheLauncher) {
  EXPECT_FALSE(rank_variables(two_nodes, job, 0, {}).contains("TUTTI_JOB_SECRET"));
  auto secret = job;
  secret.secret = "a secret of the launcher";
  EXPECT_EQ(rank_variables(two_nodes, secret, 0, {}).at("TUTTI_JOB_SECRET"), "a secret of the launcher");
}

TEST(RankVariables, NameTheCoordinatorOfTheLauncher) {
  auto held = job;
  held.coordinator_port = 4321;
  auto variables = rank_variables(two_nodes, held, 0, {{"TUTTI_MASTER_PORT", "1,2"}});
  EXPECT_EQ(variables.at("MASTER_PORT"), "1234");
  EXPECT_EQ(environment_of(variables).master_port, 4321);
  EXPECT_TRUE(environment_of(variables).launcher_coordinator);
  // A launcher inside this launcher.
  variables["MASTER_PORT"] = "999";
  EXPECT_EQ(environment_of(variables).master_port, 999);
  EXPECT_FALSE(environment_of(variables).launcher_coordinator);
  EXPECT_FALSE(rank_variables(two_nodes, job, 0, {{"TUTTI_MASTER_PORT", "1,2"}}).contains("TUTTI_MASTER_PORT"));
}

TEST(EnvironmentBlock, JoinsNamesAndValues) {
  EXPECT_EQ(environment_block({{"A", "1"}, {"B", "x=y"}}), (std::vector<std::string>{"A=1", "B=x=y"}));
}

TEST(AllowedCores, IsPositive) {
  EXPECT_GE(allowed_cores(), 1);
}

}  // namespace
}  // namespace tutti::rank_variables_test
