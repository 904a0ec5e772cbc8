// `tutti plan`, as a user runs it.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "launch/tutti_process.h"
#include "support/temporary_folder.h"

namespace tutti::test::plan_command_test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

Finished plan(Words words) {
  words.insert(words.begin(), "plan");
  return run_tutti(words);
}

Words with_times(Words words) {
  words.insert(words.end(), {"--forward-ms", "10", "--backward-ms", "20", "--optimizer-ms", "5"});
  return words;
}

TEST(PlanCommand, PredictsARowForEachNumberOfNodesAndLink) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "rows.json";
  const auto done = plan(with_times({"--gradients", "27.4MB", "--nodes", "1,2,4", "--ranks-per-node", "2", "--cores",
                                     "2", "--link", "10gbit", "--link", "lab=30,1", "--json", file.string()}));
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(lines_with(done.out, "| 10gbit | "), 2) << done.out;
  EXPECT_EQ(lines_with(done.out, "| lab    | "), 2) << done.out;
  std::istringstream lines(done.out);
  std::set<std::size_t> widths;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('|')) widths.insert(line.size());
  }
  EXPECT_EQ(widths.size(), 1U) << done.out;
  for (const auto* column :
       {"step ", "computing ", "in node ", "hidden ", "exposed ", "headers ", "optimizer ", "efficiency "}) {
    EXPECT_TRUE(contains(done.out, "\n" + std::string(column))) << column << " is not explained in " << done.out;
  }
  EXPECT_TRUE(contains(done.out, "lab: 30 µs, 1 Gbit/s\n")) << done.out;
  EXPECT_TRUE(contains(done.out, "10 Gbit/s, assumed")) << done.out;
  std::ifstream in(file);
  const auto rows = json::parse(in);
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_TRUE(rows[0].at("link").is_null());
  EXPECT_EQ(rows[4].at("link"), "lab");
  EXPECT_EQ(rows[4].at("ranks"), 8);
  for (const auto& row : rows) EXPECT_GE(row.at("step_ms"), 35) << row;
}

TEST(PlanCommand, ReadsGradientsFromAFile) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "model.safetensors";
  const std::string header = R"({"w":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]},)"
                             R"("count":{"dtype":"I64","shape":[1],"data_offsets":[4000,4008]}})";
  const std::uint64_t size = header.size();
  std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(&size), sizeof(size))
      << header << std::string(4008, '\0');
  const auto done = plan(with_times({"--model", file.string(), "--nodes", "2", "--link", "1gbit"}));
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_TRUE(contains(done.out, "0.0 MB of gradients")) << done.out;
}

TEST(PlanCommand, MeasuresTheFiguresThatAreNotGiven) {
  const auto done =
      plan({"--measure", "--nodes",      "1,2", "--link",      "1gbit", "--ranks-per-node", "2", "--steps",
            "2",         "--width",      "16",  "--layers",    "1",     "--context",        "8", "--vocabulary",
            "32",        "--batch-size", "2",   "--every-pass"});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_TRUE(contains(done.err, "no model is given, so the example is measured")) << done.err;
  EXPECT_TRUE(contains(done.out, "measured here: GPT of width 16")) << done.out;
  EXPECT_TRUE(contains(done.out, "measured here: a barrier inside a node takes")) << done.out;
  EXPECT_TRUE(contains(done.out, "exchanged in every pass")) << done.out;
}

TEST(PlanCommand, NamesTheInvalidOption) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--gradients", "27.4MB"}, "give --forward-ms, --backward-ms and --optimizer-ms too"},
      {{"--forward-ms", "3"}, "give --gradients or --model too"},
      {with_times({"--gradients", "1MB", "--model", "x"}), "leave one of them out"},
      {with_times({"--gradients", "many"}), "is not a size"},
      {with_times({"--gradients", "1000TB"}), "is more than 1 TB"},
      {with_times({"--gradients", "1MB", "--link", "5gbit"}), "--link 5gbit is not a link"},
      {with_times({"--gradients", "1MB", "--nodes", "0"}), "--nodes"},
      {with_times({"--gradients", "1MB", "--json", "/no/such/folder/rows.json"}), "cannot write --json"},
      {{"--forward-ms", "nan", "--backward-ms", "2", "--optimizer-ms", "1", "--gradients", "1MB"},
       "--forward-ms takes a number, not 'nan'"},
      {with_times({"--gradients", "1MB", "--cores", "nan"}), "--cores takes a number, not 'nan'"},
      {with_times({"--gradients", "1MB", "--cores", "inf"}), "--cores: Value inf not in range"},
      {with_times({"--gradients", "1MB", "--cores", "-1"}), "--cores: Value -1 not in range"},
      {with_times({"--gradients", "nan"}), "is not a size"},
      {with_times({"--gradients", "-1MB"}), "is not a size"},
      {with_times({"--gradients", "1MB", "--link", "lab=nan,1"}), "--link lab=nan,1 is not a link"},
      {with_times({"--gradients", "1MB", "--link", "lab=1,inf"}), "--link lab=1,inf is not a link"},
      {with_times({"--gradients", "1MB", "--link", "lab=-1,1"}), "--link lab=-1,1 is not a link"},
      {with_times({"--gradients", "1MB", "--nodes", "2,nan"}), "--nodes"},
      {with_times({"--gradients", "1MB", "--nodes", "1,x"}), "--nodes takes a whole number, not 'x'"},
      {with_times({"--gradients", "1MB", "--ranks-per-node", "-2"}), "--ranks-per-node"},
      {with_times({"--gradients", "1MB", "--accumulation", "inf"}), "--accumulation"},
      {{"--steps", "-1"}, "--steps"},
      {{"--width", "18"}, "multiple of the 4"},
      {{"--no-such-option"}, "see 'tutti plan --help'"},
  };
  for (const auto& [words, part] : cases) {
    const auto done = plan(words);
    EXPECT_EQ(done.exit_code, 2) << part;
    EXPECT_TRUE(contains(done.err, part)) << done.err;
    EXPECT_EQ(done.out, "") << part;
  }
  const auto missing = plan(with_times({"--model", "/no/such/file"}));
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_TRUE(contains(missing.err, "/no/such/file")) << missing.err;
}

TEST(PlanCommand, RefusesToRunAsRanks) {
  const auto program = std::filesystem::path(TUTTI_COMMAND).parent_path() / "tutti-plan";
  const auto done = run_tutti({"launch", "-n", "1", "--", program});
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_TRUE(contains(done.err, "start it without ranks")) << done.err;
}

}  // namespace
}  // namespace tutti::test::plan_command_test
