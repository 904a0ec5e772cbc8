// Two ranks on each of two and three network namespaces, against as many ranks on one node. The sum over ranks is the
// same tree wherever ranks are, so the same bits come out.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace tutti::nodes_test {
namespace {

constexpr int impossible = 77;  // nodes.sh: this machine can make none

struct Finished {
  int exit_code = -1;
  std::string output;
};

Finished run(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen");
  Finished finished;
  std::array<char, 4096> buffer;
  while (const auto count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    finished.output.append(buffer.data(), count);
  }
  const int status = ::pclose(pipe);
  finished.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return finished;
}

/// The last line with `text` in it, from there.
std::string from_last(const std::string& text, const std::string& output) {
  const auto begin = output.rfind(text);
  return begin == std::string::npos ? "" : output.substr(begin, output.find('\n', begin) - begin);
}

void expect_same_as_one_node(int nodes, const std::string& program, const std::string& result) {
  const Finished apart = run("TORCH_CPP_LOG_LEVEL=ERROR " NODES_SCRIPT " " + std::to_string(nodes) +
                             " 1gbit 2 " TUTTI_COMMAND " " + program);
  if (apart.exit_code == impossible) GTEST_SKIP() << apart.output;
  ASSERT_EQ(apart.exit_code, 0) << apart.output;
  const Finished together = run(TUTTI_COMMAND " launch -n " + std::to_string(2 * nodes) + " -- " + program);
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
}  // namespace tutti::nodes_test
