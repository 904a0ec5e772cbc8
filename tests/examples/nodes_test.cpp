// Two ranks on each of two and three network namespaces, against as many ranks on one node. The sum over ranks is the
// same tree wherever ranks are, so the same bits come out.
#include <gtest/gtest.h>

#include <string>

#include "examples/programs.h"

namespace tutti::test::nodes_test {
namespace {

constexpr int impossible = 77;  // nodes.sh: this machine can make none

void expect_same_as_one_node(int nodes, const std::string& program, const std::string& result) {
  const Ran apart = run("TORCH_CPP_LOG_LEVEL=ERROR " NODES_SCRIPT " " + std::to_string(nodes) +
                        " 1gbit 2 " TUTTI_COMMAND " " + program + " 2>&1");
  if (apart.exit_code == impossible) GTEST_SKIP() << apart.output;
  ASSERT_EQ(apart.exit_code, 0) << apart.output;
  const Ran together = run(TUTTI_COMMAND " launch -n " + std::to_string(2 * nodes) + " -- " + program + " 2>&1");
  ASSERT_EQ(together.exit_code, 0) << together.output;
  EXPECT_NE(from_last(result, apart.output), "") << apart.output;
  EXPECT_EQ(from_last(result, apart.output), from_last(result, together.output));
}

class Nodes : public testing::TestWithParam<int> {};

TEST_P(Nodes, DdpEndsWithTheDigestOfOneNode) {
  expect_same_as_one_node(GetParam(), DDP_PROGRAM " --distributed --epochs 2 --batch_size 4 --data_size 48", "digest ");
}

TEST_P(Nodes, GptEndsWithTheLossOfOneNode) {
  expect_same_as_one_node(GetParam(),
                          GPT_PROGRAM
                          " --steps 5 --accumulation 2 --batch-size 1 --context 16 --width 64 --layers 2 --heads 2 "
                          "--sample-bytes 8 --data " SOME_TEXT,
                          "held-out loss ");
}

INSTANTIATE_TEST_SUITE_P(TwoAndThree, Nodes, testing::Values(2, 3));

}  // namespace
}  // namespace tutti::test::nodes_test
