#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "launch/tutti_process.h"
#include "support/temporary_folder.h"

namespace tutti::test::bench_test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

const Words tiny_model{"--width",      "16", "--layers",     "1", "--context", "8",
                       "--vocabulary", "32", "--batch-size", "2", "--repeats", "2"};

/// Runs `tutti bench` with `words`, which must succeed. Returns its table and sets `rows` to the --json output.
std::string bench(Words words, json& rows) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "rows.json";
  words.insert(words.begin(), "bench");
  words.insert(words.end(), {"--json", file.string()});
  const auto finished = run_tutti(words);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  std::ifstream in(file);
  rows = json::parse(in, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(rows.is_array()) << finished.out;
  for (const auto& row : rows) {
    EXPECT_GT(row.at("median"), 0) << row;
    EXPECT_LE(row.at("min"), row.at("median")) << row;
    EXPECT_GE(row.at("max"), row.at("median")) << row;
  }
  return finished.out;
}

std::set<std::string> values_of(const json& rows, const std::string& key) {
  std::set<std::string> values;
  for (const auto& row : rows) values.insert(row.at(key));
  return values;
}

TEST(BenchHelp, ShowsOptionsAsTheyAreWritten) {
  for (const std::string table : {"sync", "all-reduce"}) {
    const auto finished = run_tutti({"bench", table, "--help"});
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    EXPECT_TRUE(contains(finished.out, "--no-")) << finished.out;
    EXPECT_FALSE(contains(finished.out, "{false}")) << finished.out;
  }
}

TEST(BenchStep, ComparesTheLoopAndItsParts) {
  auto words = tiny_model;
  words.insert(words.begin(), {"step", "--batches", "4", "--steps", "2", "--calls", "2"});
  json rows;
  const auto table = bench(words, rows);
  const std::set<std::string> figures{"batch",           "batch with clipping",    "AdamW step",
                                      "Adam step",       "SGD with momentum step", "Adagrad step",
                                      "clip_grad_norm_", "accumulate() scope"};
  EXPECT_EQ(values_of(rows, "figure"), figures);
  for (const auto& figure : figures) EXPECT_TRUE(contains(table, "| " + figure + ", ")) << figure << "\n" << table;
  EXPECT_EQ(values_of(rows, "system"), (std::set<std::string>{"LibTorch", "tutti", "tutti / LibTorch"}));
}

TEST(BenchFailures, TimesFailureReports) {
  json rows;
  const auto table = bench({"failures", "--failures", "killed,stopped", "--ranks", "2", "--trials", "1"}, rows);
  EXPECT_EQ(lines_with(table, ", one node | "), 4) << table;
  EXPECT_EQ(values_of(rows, "failure"), (std::set<std::string>{"killed", "stopped"}));
  EXPECT_EQ(values_of(rows, "during"), (std::set<std::string>{"collectives", "training"}));
}

TEST(BenchScale, CountsWhatEachNumberOfRanksCosts) {
  json rows;
  const auto table = bench({"scale", "--ranks", "2,3", "--steps", "2", "--gradients", "4MiB"}, rows);
  EXPECT_EQ(lines_with(table, "| threads |"), 1) << table;
  EXPECT_TRUE(contains(table, "| 3 | ")) << table;
  EXPECT_TRUE(contains(table, "| 3, not connected | ")) << table;
  EXPECT_TRUE(contains(table, " with 4.0 MiB of gradients and exit")) << table;
  std::set<std::string> figures;
  for (const std::string figure :
       {"time", "CPU", "CPU in the kernel", "CPU in main", "threads", "descriptors", "page tables"}) {
    figures.insert({figure, figure + " not connected"});
  }
  EXPECT_EQ(values_of(rows, "figure"), figures);
  const auto value_of = [&](const std::string& figure) {
    const auto is_it = [&](const json& row) { return row.at("figure") == figure; };
    return std::ranges::find_if(rows, is_it)->at("median").get<double>();
  };
  EXPECT_GT(value_of("CPU in main"), 0);
  EXPECT_LT(value_of("CPU in main"), value_of("CPU"));
}

TEST(BenchScale, CountsRanksThatShareLibTorchsStart) {
  json rows;
  const auto table = bench({"scale", "--forked", "--ranks", "2,3", "--steps", "2"}, rows);
  EXPECT_TRUE(contains(table, ", forked from one process of each node, connect, take 2 optimizer steps")) << table;
  EXPECT_TRUE(contains(table, "| 3 | ")) << table;
  EXPECT_TRUE(contains(table, "| 3, not connected | ")) << table;
  for (const auto& row : rows) EXPECT_TRUE(row.at("forked").get<bool>()) << row;
}

TEST(BenchPlan, HoldsPredictionsAgainstSteps) {
  auto words = tiny_model;
  words.insert(words.begin(), {"plan", "--ranks", "2,3", "--nodes", "2", "--ranks-per-node", "1", "--rates", "1gbit",
                               "--exchanges", "once", "--steps", "2"});
  json rows;
  const auto table = bench(words, rows);
  for (const auto& row : rows) EXPECT_GT(row.at("predicted"), 0) << row;
  EXPECT_TRUE(contains(table, "| 1 | 3 |  | once a step | ")) << table;
  EXPECT_EQ(lines_with(table, "- the largest error is "), 1) << table;
}

TEST(BenchAllReduce, TakesEverySizeTypeAndNumberOfRanks) {
  json rows;
  const auto table = bench({"all-reduce", "--ranks", "2,3", "--sizes", "8,4KiB", "--dtypes", "float32,bfloat16",
                            "--repeats", "2", "--milliseconds", "1"},
                           rows);
  for (const std::string system :
       {"tutti gradients", "tutti all_reduce", "tutti over tcp", "c10d Gloo", "plain socket", "bare sum"}) {
    const bool has_cpu = system != "bare sum";
    const bool has_ratio = system.starts_with("tutti");
    EXPECT_EQ(std::ranges::count(rows, json(system), [](const json& row) { return row.at("system"); }),
              has_cpu ? 16 : 8)
        << system;
    EXPECT_EQ(lines_with(table, "| " + system + " |"), 4 * (1 + (has_cpu ? 1 : 0) + (has_ratio ? 1 : 0))) << table;
  }
  EXPECT_EQ(values_of(rows, "figure"), (std::set<std::string>{"time", "CPU"}));
  EXPECT_TRUE(contains(table, "| 4 KiB |")) << table;
  // The MPI column, or the reason for its absence.
  EXPECT_TRUE(contains(table, "- MPI: ") || contains(table, "- no MPI column")) << table;
}

TEST(BenchAllReduce, MeasuresTwoNodes) {
  json rows;
  const auto table = bench({"all-reduce", "--nodes", "2", "--rate", "10gbit", "--ranks", "2,4", "--sizes", "4KiB",
                            "--repeats", "2", "--milliseconds", "1"},
                           rows);
  if (rows.empty()) GTEST_SKIP() << table;  // the line of nodes.sh: the machine cannot make nodes
  EXPECT_TRUE(contains(table, "over the ranks of two nodes at 10gbit")) << table;
  EXPECT_TRUE(contains(table, "| 4 ranks, float32 | tutti gradients | tutti all_reduce | tutti over tcp |")) << table;
  EXPECT_TRUE(contains(table, "| 2 ranks, float32 | tutti gradients | tutti all_reduce | c10d Gloo |"))
      << "with one rank on each node the default backend is tcp\n"
      << table;
  for (const auto& row : rows) EXPECT_EQ(row.at("nodes"), 2) << row;
  EXPECT_TRUE(contains(table, " over TCP, ") || contains(table, "- no MPI column")) << table;
}

TEST(BenchAllReduce, CanBeOneOfTheRanks) {
  const auto program = std::filesystem::path(TUTTI_COMMAND).parent_path() / "tutti-bench";
  const auto finished = run_tutti(
      {"launch", "-n", "2", "--", program, "all-reduce", "--sizes", "8", "--repeats", "1", "--milliseconds", "1"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_TRUE(contains(finished.out, "| 8 B |")) << finished.out;
}

TEST(BenchSync, ComparesAllSystems) {
  auto words = tiny_model;
  words.insert(words.begin(), {"sync", "--batches", "5", "--steps", "2"});
  json rows;
  bench(words, rows);
  EXPECT_EQ(values_of(rows, "system"),
            (std::set<std::string>{"tutti", "tutti, fused step", "c10d::Reducer", "hand-written", "none"}));
}

TEST(BenchSync, MeasuresTheSelectionAndTheLoopWithoutCommunication) {
  auto words = tiny_model;
  words.insert(words.begin(), {"sync", "--batches", "2", "--steps", "2", "--systems", "tutti", "--modes", "no_sync"});
  json rows;
  bench(words, rows);
  EXPECT_EQ(values_of(rows, "system"), (std::set<std::string>{"tutti", "none"}));
  EXPECT_EQ(values_of(rows, "mode"), (std::set<std::string>{"no_sync", "baseline"}));
}

TEST(BenchNlp, TrainsInBothLanguages) {
  if (!HAS_EXPORTED) GTEST_SKIP() << "tutti was built without the component exported";
  const char* python = std::getenv("TUTTI_PEERS_PYTHON");  // NOLINT(concurrency-mt-unsafe)
  if (python == nullptr || !BUILDS_TORCH_TUTTI) GTEST_SKIP() << "set TUTTI_PEERS_PYTHON: ./dev peers makes one";
  ::setenv("PYTHONPATH", PYTHON_PACKAGES, /*overwrite=*/1);  // NOLINT(concurrency-mt-unsafe)
  json rows;
  const auto table =
      bench({"nlp", "--python", python, "--width", "64", "--layers", "1", "--context", "8", "--vocabulary", "100",
             "--batch-size", "2", "--repeats", "1", "--batches", "5", "--steps", "2"},
            rows);
  ::unsetenv("PYTHONPATH");  // NOLINT(concurrency-mt-unsafe)
  EXPECT_EQ(
      values_of(rows, "system"),
      (std::set<std::string>{"tutti, C++", "none", "none in Python", "PyTorch DDP over Gloo", "Accelerate over Gloo",
                             "PyTorch DDP over tutti", "torch_tutti's DDP", "Accelerate with torch_tutti's DDP"}));
  EXPECT_TRUE(contains(table, "BertForSequenceClassification")) << table;
}

TEST(BenchExported, ComparesAChainOfOperators) {
  if (!HAS_EXPORTED) GTEST_SKIP() << "tutti was built without the component exported";
  const char* python = std::getenv("TUTTI_TORCH_PYTHON");  // NOLINT(concurrency-mt-unsafe)
  if (python == nullptr || *python == '\0') GTEST_SKIP() << "set TUTTI_TORCH_PYTHON=$(tools/torch_python.sh LIBTORCH)";
  const auto finished = run_tutti({"bench", "exported", "--python", python, "--operators", "8", "--repeats", "2"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  for (const char* row : {"| the operators called in C++ |", "| ExportedModule |", "| eager PyTorch |"}) {
    EXPECT_TRUE(contains(finished.out, row)) << finished.out;
  }
}

TEST(Bench, RefusesWhatItCannotDo) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"step", "--width", "6"}, "--width"},
      {{"step", "--json", "/no/such/folder/rows.json"}, "--json"},
      {{"all-reduce", "--sizes", "12"}, "multiple of 8"},
      {{"all-reduce", "--sizes", "many"}, "--sizes"},
      {{"all-reduce", "--dtypes", "int3"}, "--dtypes"},
      {{"all-reduce", "--ranks", "0"}, "--ranks"},
      {{"all-reduce", "--nodes", "2", "--ranks", "2,3"}, "--ranks 3 do not divide evenly"},
      {{"all-reduce", "--nodes", "2", "--rate", "fast"}, "is not a rate"},
      {{"all-reduce", "--rate", "1gbit"}, "add --nodes 2"},
      {{"plan", "--rates", "fast"}, "is not a rate"},
      {{"nlp"}, "--python"},
      {{"nlp", "--python", "/no/such/python"}, "--python"},
      {{"nlp", "--python", "/bin/sh", "--width", "100"}, "multiple of 64"},
      {{"none-of-these"}, "there is no benchmark"},
  };
  for (auto [words, part] : cases) {
    if (!HAS_EXPORTED && words.front() == "nlp") part = "TUTTI_EXPORTED=ON";
    words.insert(words.begin(), "bench");
    const auto finished = run_tutti(words);
    EXPECT_EQ(finished.exit_code, 2) << part;
    EXPECT_TRUE(contains(finished.err, part)) << finished.err;
    EXPECT_EQ(finished.out, "") << part;
  }
}

TEST(BenchStep, RefusesToRunAsRanks) {
  const auto program = std::filesystem::path(TUTTI_COMMAND).parent_path() / "tutti-bench";
  const auto finished = run_tutti({"launch", "-n", "1", "--", program, "step"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_TRUE(contains(finished.err, "one process")) << finished.err;
}

}  // namespace
}  // namespace tutti::test::bench_test
