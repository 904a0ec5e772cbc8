#include "tutti/checkpoint/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "checkpoint/manifest.h"
#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "support/rank_case.h"
#include "tutti/checkpoint/safetensors.h"

namespace tutti::test::checkpoint_test {
namespace {

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

void expect_small(const Checkpoint& read, std::int64_t step, int size) {
  EXPECT_EQ(read.info.step, step);
  EXPECT_EQ(read.info.world_size, size);
  EXPECT_TRUE(same(read.shared, small_content(step, 0).shared));
  ASSERT_EQ(read.per_rank.size(), static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_TRUE(same(read.per_rank[static_cast<std::size_t>(rank)], small_content(step, rank).per_rank))
        << "rank " << rank;
  }
}

// The folder comes from rank 0, because ranks as processes have no other way to agree on one.
const RankCase comes_back("checkpoint_comes_back", [](const Communicator& communicator) {
  const TemporaryFolder mine;
  const std::filesystem::path folder = communicator.broadcast_object(mine.path().string());
  const auto path = folder / "deep" / "er" / "checkpoint_5";
  write_checkpoint(path, small_content(5, communicator.rank()), communicator);
  expect_small(read_checkpoint(path), 5, communicator.size());
  communicator.barrier().wait();
});

TEST(Checkpoint, IsReadFromAnyNumberOfRanks) {
  comes_back.on_threads({1, 2, 3});
  comes_back.on_processes({2});
}

TEST(Checkpoint, HoldsTheFilesThatAreDocumented) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "checkpoint_0";
  run_thread_ranks(2, [&](const Communicator& communicator) {
    write_checkpoint(path, small_content(0, communicator.rank()), communicator);
  });
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"checkpoint_0"});
  EXPECT_EQ(names_in(path),
            (std::vector<std::string>{"manifest.json", "model.safetensors", "optimizer.safetensors", "rank_0.json",
                                      "rank_0.safetensors", "rank_1.json", "rank_1.safetensors", "state.json"}));
}

TEST(Checkpoint, EveryTypeOfValueIsRestored) {
  const TemporaryFolder folder;
  CheckpointContent content;
  content.step = std::numeric_limits<std::int64_t>::max();
  content.shared["a-Z_9"] = every_kind_of_value();
  content.shared["empty"] = StateDict();
  content.per_rank = every_kind_of_value();
  write_checkpoint(folder.path() / "any name/", content, Communicator());
  const auto read = read_checkpoint(folder.path() / "any name");
  EXPECT_EQ(read.info.step, content.step);
  EXPECT_TRUE(same(read.shared, content.shared));
  EXPECT_TRUE(same(read.per_rank.at(0), content.per_rank));
}

TEST(Checkpoint, MetricsAreRestoredBitForBit) {
  const TemporaryFolder folder;
  int number = 0;
  for (const std::optional<double> metric : {std::optional<double>(), std::optional(0.1), std::optional(2.0),
                                             std::optional(std::numeric_limits<double>::quiet_NaN()),
                                             std::optional(-std::numeric_limits<double>::infinity())}) {
    const auto path = folder.path() / std::to_string(number++);
    CheckpointContent content;
    content.metric = metric;
    write_checkpoint(path, content, Communicator());
    const auto read = read_checkpoint_info(path).metric;
    ASSERT_EQ(read.has_value(), metric.has_value());
    if (!metric) continue;
    EXPECT_EQ(std::bit_cast<std::uint64_t>(*read), std::bit_cast<std::uint64_t>(*metric));
  }
}

TEST(Checkpoint, TiedTensorsAreWrittenOnceAndStayTied) {
  const TemporaryFolder folder;
  CheckpointContent content;
  const auto tensor = at::arange(6, at::kFloat);
  content.shared["model"].set("head.weight", tensor);
  content.shared["model"].set("embedding.weight", tensor);
  content.shared["model"].set("half", tensor.narrow(0, 0, 3));
  write_checkpoint(folder.path() / "c", content, Communicator());
  EXPECT_EQ(load_safetensors(folder.path() / "c" / "model.safetensors").tensors.size(), 2U);
  const auto model = read_checkpoint(folder.path() / "c").shared.at("model");
  EXPECT_TRUE(same(model, content.shared.at("model")));
  EXPECT_TRUE(model.get<at::Tensor>("head.weight").is_same(model.get<at::Tensor>("embedding.weight")));
}

TEST(Checkpoint, ReadsTheStateOfTheRequestedRanksOnly) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "c";
  run_thread_ranks(3, [&](const Communicator& communicator) {
    write_checkpoint(path, small_content(1, communicator.rank()), communicator);
  });
  std::filesystem::remove(path / "rank_0.json");  // this file must not be read
  const auto read = read_checkpoint(path, std::vector<int>{2, 7, -1});
  ASSERT_EQ(read.per_rank.size(), 3U);
  EXPECT_TRUE(read.per_rank[0].empty() && read.per_rank[1].empty());
  EXPECT_TRUE(same(read.per_rank[2], small_content(1, 2).per_rank));
  EXPECT_TRUE(read_checkpoint(path, std::vector<int>{}).per_rank[2].empty());
}

TEST(Checkpoint, RefusesAnExistingFolderOnAllRanks) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "c";
  std::filesystem::create_directory(path);
  run_thread_ranks(2, [&](const Communicator& communicator) {
    expect_error<UsageError>([&] { write_checkpoint(path, small_content(1, communicator.rank()), communicator); },
                             {path.string(), "already"});
    EXPECT_FALSE(communicator.failed());
  });
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

TEST(Checkpoint, RemovesTheFilesOfAKilledAttempt) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / ".checkpoint_1.partial");
  write_content(folder.path() / ".checkpoint_1.partial" / "foreign.safetensors", "torn");
  run_thread_ranks(2, [&](const Communicator& communicator) {
    write_checkpoint(folder.path() / "checkpoint_1", small_content(1, communicator.rank()), communicator);
  });
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"checkpoint_1"});
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "checkpoint_1" / "foreign.safetensors"));
}

TEST(Checkpoint, RefusesPartNamesThatCannotBeFileNames) {
  const TemporaryFolder folder;
  for (const char* name : {"", "state", "manifest", "rank_0", "rank_12", "a.b", "a/b", "..", "ä", "a b"}) {
    CheckpointContent content;
    content.shared[name] = StateDict();
    expect_error<UsageError>([&] { write_checkpoint(folder.path() / "c", content, Communicator()); },
                             {std::string("'") + name + "'"});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  CheckpointContent content;
  content.shared["rank_"] = content.shared["rank_x"] = content.shared["states"] = StateDict();
  write_checkpoint(folder.path() / "c", content, Communicator());
  EXPECT_EQ(read_checkpoint(folder.path() / "c").shared.size(), 3U);
}

}  // namespace
}  // namespace tutti::test::checkpoint_test
