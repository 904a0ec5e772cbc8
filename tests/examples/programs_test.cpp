// The programs in examples/ on one process and under `tutti launch`.
#include "examples/programs.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace tutti::test::programs_test {
namespace {

const std::string ddp = DDP_PROGRAM;
const std::string gpt = GPT_PROGRAM;
const std::string on_two_ranks = std::string(TUTTI_COMMAND) + " launch -n 2 -- ";

TEST(DdpProgram, RanksAndReplicasEndWhereAccumulationEnds) {
  const auto alone = run(ddp + " --epochs 2 --batch_size 4 --data_size 8 --verbose --acc_steps 2");
  const auto ranks = run(on_two_ranks + ddp + " --epochs 2 --distributed --batch_size 4 --data_size 8 --verbose");
  ASSERT_EQ(alone.exit_code, 0);
  ASSERT_EQ(ranks.exit_code, 0);
  const auto digest = from_last("digest ", alone.output);
  EXPECT_TRUE(std::regex_match(digest, std::regex("digest [0-9a-f]{8}"))) << alone.output;
  EXPECT_EQ(from_last("digest ", ranks.output), digest);
  EXPECT_NE(from_last("final parameters:", alone.output), "");
  EXPECT_EQ(from_last("final parameters:", ranks.output), from_last("final parameters:", alone.output));
  const auto replicas = run(ddp + " --data_parallel --replicas 2 --epochs 2 --batch_size 8 --data_size 8 --verbose");
  ASSERT_EQ(replicas.exit_code, 0);
  EXPECT_EQ(from_last("digest ", replicas.output), digest);
  EXPECT_EQ(from_last("final parameters:", replicas.output), from_last("final parameters:", alone.output));
}

TEST(DdpProgram, RanksMayAlsoAccumulate) {
  const auto alone = run(ddp + " --epochs 3 --batch_size 2 --data_size 24 --acc_steps 4");
  const auto ranks = run(on_two_ranks + ddp + " --epochs 3 --distributed --batch_size 2 --data_size 24 --acc_steps 2");
  const auto first_weight = [](const Ran& finished) {
    std::smatch weight;
    const auto line = from_last("final parameters:", finished.output);
    return std::regex_search(line, weight, std::regex("weight ([-0-9.e]+) ")) ? std::stod(weight[1]) : 0.0;
  };
  // The sums of four differ in order from those of one process, so they are equal up to rounding.
  EXPECT_NE(first_weight(alone), 0);
  EXPECT_NEAR(first_weight(ranks), first_weight(alone), 1e-6);
}

TEST(DdpProgram, DigestDiffersBetweenRuns) {
  EXPECT_NE(from_last("digest ", run(ddp + " --seed 1").output), from_last("digest ", run(ddp + " --seed 2").output));
}

TEST(DdpProgram, RefusesBadInputInOneLine) {
  expect_refusal(ddp + " --distributed", 1, "--distributed needs a launcher: tutti launch");
  expect_refusal(ddp + " --batch_size 9 --data_size 8", 1, "--data_size 8 is too small");
  expect_refusal(ddp + " --data_parallel --replicas 0", 2, "--replicas");
  expect_refusal(on_two_ranks + ddp + " --distributed --data_parallel 2>&1 | grep -m1 choose", 0, "choose one");
  expect_refusal(ddp + " --epochs 0", 2, "--epochs");
  expect_refusal(ddp + " --acc_steps many", 2, "--acc_steps");
  expect_refusal(ddp + " --no-such-option", 2, "--no-such-option");
  expect_refusal("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 " + ddp, 1,
                 "started on 2 ranks: add --distributed");
}

TEST(GptProgram, LearnsOnTwoRanks) {
  const std::string options =
      " --steps 12 --accumulation 4 --batch-size 2 --context 32 --width 32 --layers 2 --heads 2 --sample-bytes 20 "
      "--data ";
  const auto finished = run(on_two_ranks + gpt + options + SOME_TEXT);
  ASSERT_EQ(finished.exit_code, 0);
  const auto last_line = finished.output.substr(finished.output.rfind('\n', finished.output.size() - 2) + 1);
  std::smatch losses;
  ASSERT_TRUE(std::regex_search(last_line, losses, std::regex("held-out loss ([0-9.]+) -> ([0-9.]+) nats per byte\n$")))
      << finished.output;
  EXPECT_NEAR(std::stod(losses[1]), 5.55, 0.1);
  EXPECT_LT(std::stod(losses[2]), std::stod(losses[1]) - 0.5);
  std::smatch rounds;
  ASSERT_TRUE(
      std::regex_search(finished.output, rounds,
                        std::regex("([0-9]+) backward passes on each: 12 synchronizations done, ([0-9]+) avoided")))
      << finished.output;
  EXPECT_EQ(std::stoi(rounds[1]), 12 + std::stoi(rounds[2]));
  EXPECT_GT(std::stoi(rounds[1]), 40);  // 4 in a step, except for a window that ends with the text
  EXPECT_NE(finished.output.find("step 12/12"), std::string::npos) << finished.output;
  EXPECT_NE(finished.output.find("#include <"), std::string::npos) << finished.output;
}

TEST(GptProgram, RefusesUnusableBackendsInOneLine) {
  const auto with_backend = [](const std::string& backend) {
    return "TUTTI_BACKEND=" + backend + " " + gpt + " --data ";
  };
  expect_refusal(with_backend("gluu") + SOME_TEXT, 1, "gpt: TUTTI_BACKEND=gluu: There is no backend 'gluu'");
  expect_refusal(with_backend("nccl") + SOME_TEXT, 1, "compiled without NCCL");
}

TEST(GptProgram, RefusesBadInputInOneLine) {
  expect_refusal(gpt, 2, "--data is required");
  expect_refusal(gpt + " --no-such-option", 2, "gpt: ");
  expect_refusal(gpt + " --data /dev/null --steps 0", 2, "--steps");
  expect_refusal(gpt + " --data /dev/null --width 10 --heads 3", 2, "--heads 3 does not divide --width 10");
  expect_refusal(gpt + " --data /dev/null --steps 5 --warmup 6", 2, "--warmup 6 is longer than --steps 5");
  expect_refusal(gpt + " --data /dev/null --prompt ''", 2, "--prompt is empty");
  expect_refusal(gpt + " --data /no/such/folder", 1, "no such file or folder: /no/such/folder");
  expect_refusal(gpt + " --data /dev/null", 1, "no text in /dev/null");
  expect_refusal(gpt + " --context 1000000 --data " + SOME_TEXT, 1, "smaller --context");
}

}  // namespace
}  // namespace tutti::test::programs_test
