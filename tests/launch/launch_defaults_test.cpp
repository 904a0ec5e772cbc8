#include "tutti/detail/launch/launch_defaults.h"

#include <gtest/gtest.h>

#include <map>

#include "launch/rank_variables.h"
#include "launch/tutti_process.h"
#include "tutti/core/error.h"

namespace tutti::test::launch_defaults_test {
namespace {

using Words = std::map<std::string, std::string>;

LaunchOptions defaults_for(const Words& variables) {
  return launch_defaults([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(LaunchDefaults, EqualLaunchOptionsWithoutVariables) {
  const auto options = defaults_for({});
  EXPECT_EQ(options.ranks_per_node, 1);
  EXPECT_EQ(options.num_nodes, 1);
  EXPECT_EQ(options.node_rank, 0);
  EXPECT_EQ(options.master_addr, "127.0.0.1");
  EXPECT_EQ(options.master_port, std::nullopt);
}

TEST(LaunchDefaults, ReadTheVariablesOfKubernetes) {
  const Words pod{{"PET_NNODES", "3"},
                  {"PET_NPROC_PER_NODE", "2"},
                  {"PET_NODE_RANK", "1"},
                  {"PET_MASTER_ADDR", "job-0"},
                  {"PET_MASTER_PORT", "29400"}};
  const auto options = defaults_for(pod);
  EXPECT_EQ(options.num_nodes, 3);
  EXPECT_EQ(options.ranks_per_node, 2);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.master_addr, "job-0");
  EXPECT_EQ(options.master_port, 29400);
  EXPECT_EQ(defaults_for({{"PET_NNODES", "2:2"}}).num_nodes, 2);
  EXPECT_EQ(defaults_for({{"PET_NNODES", "2"}}).master_addr, "");
  EXPECT_EQ(defaults_for({{"PET_NPROC_PER_NODE", "cpu"}}).ranks_per_node, allowed_cores());
  EXPECT_EQ(defaults_for({{"PET_NPROC_PER_NODE", "auto"}, {"CUDA_VISIBLE_DEVICES", ""}}).ranks_per_node,
            allowed_cores());
}

TEST(LaunchDefaults, ResolveTheWordsOfTorchrun) {
  const NodeDevices with_gpus{.cores = 64, .gpus = 8};
  const NodeDevices without{.cores = 64, .gpus = 0};
  EXPECT_EQ(resolve_ranks("-n auto", "auto", with_gpus), "8");
  EXPECT_EQ(resolve_ranks("-n gpu", "gpu", with_gpus), "8");
  EXPECT_EQ(resolve_ranks("-n cpu", "cpu", with_gpus), "64");
  EXPECT_EQ(resolve_ranks("-n auto", "auto", without), "64");
  EXPECT_EQ(resolve_ranks("-n 3", "3", with_gpus), "3");
  EXPECT_EQ(resolve_nodes("--nnodes 3:3", "3:3"), "3");
  EXPECT_EQ(resolve_nodes("--nnodes x", "x"), "x");
}

TEST(LaunchDefaults, NameTheInvalidVariable) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{{"PET_NNODES", "x"}}, "PET_NNODES='x'"},
      {{{"PET_NNODES", "0"}}, "PET_NNODES='0'"},
      {{{"PET_NNODES", "1:4"}}, "PET_NNODES='1:4' is a range"},
      {{{"PET_NPROC_PER_NODE", "gpu"}, {"CUDA_VISIBLE_DEVICES", ""}}, "PET_NPROC_PER_NODE='gpu': there is no"},
      {{{"PET_NPROC_PER_NODE", "0"}}, "PET_NPROC_PER_NODE='0'"},
      {{{"PET_NPROC_PER_NODE", "2.5"}}, "PET_NPROC_PER_NODE='2.5'"},
      {{{"PET_NODE_RANK", "1"}}, "PET_NODE_RANK=1"},
      {{{"PET_MASTER_PORT", "0"}}, "PET_MASTER_PORT=0"},
  };
  for (const auto& [variables, part] : cases) {
    try {
      defaults_for(variables);
      ADD_FAILURE() << part;
    } catch (const UsageError& error) {
      EXPECT_TRUE(contains(error.what(), part)) << part << " is not in: " << error.what();
    }
  }
}

TEST(LaunchDefaults, TheCommandLineTakesPrecedence) {
  const TuttiProcess::Options pod{.variables = {"PET_NNODES=2", "PET_NPROC_PER_NODE=3", "PET_NODE_RANK=1",
                                                "PET_MASTER_ADDR=127.0.0.1", "PET_MASTER_PORT=1234"}};
  const std::vector<std::string> program{"--", "sh", "-c", "echo $RANK/$WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"};
  const auto launch = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "launch");
    words.insert(words.end(), program.begin(), program.end());
    return TuttiProcess(words, pod).wait();
  };
  const auto from_pod = launch({});
  EXPECT_EQ(from_pod.exit_code, 0) << from_pod.err;
  EXPECT_TRUE(contains(from_pod.out, "5/6 at 127.0.0.1:1234")) << from_pod.out;
  const auto from_words = launch({"-n", "1", "--master-port", "4321"});
  EXPECT_EQ(from_words.out, "[rank 1] 1/2 at 127.0.0.1:4321\n") << from_words.err;
  const auto broken = TuttiProcess({"launch", "--", "true"}, {.variables = {"PET_NNODES=1:2"}}).wait();
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_TRUE(contains(broken.err, "PET_NNODES='1:2'")) << broken.err;
}

}  // namespace
}  // namespace tutti::test::launch_defaults_test
