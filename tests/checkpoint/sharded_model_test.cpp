// A model in several safetensors files, and the replacement of a model's files. 1 rank.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <set>

#include "checkpoint/file.h"
#include "checkpoint/models.h"
#include "checkpoint/scratch.h"
#include "checkpoint/sharded_model.h"
#include "checkpoint/states.h"
#include "support/training.h"
#include "tutti/checkpoint/model_file.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/core/error.h"

namespace tutti::test::sharded_model_test {
namespace {

using Names = std::set<std::string>;
const std::string index_name = "model.safetensors.index.json";

Names names_in(const std::filesystem::path& folder) {
  Names names;
  for (const auto& entry : checkpoint::entries_of(folder)) names.insert(entry.filename().string());
  return names;
}

void expect_loaded(const torch::nn::Module& saved, const std::filesystem::path& path) {
  Tied loaded;
  fill(*loaded, 2);
  const auto result = load_model(*loaded, path);
  EXPECT_TRUE(result.missing.empty() && result.unexpected.empty());
  for (const auto& [name, tensor] : named_tensors_of(saved)) {
    EXPECT_TRUE(same(named_tensors_of(*loaded).at(name), tensor)) << name;
  }
}

class ShardedModel : public testing::Test {
 protected:
  ShardedModel() { fill(*model_, 1); }
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "model.safetensors";
  Tied model_;  // embedding.weight of 60 bytes, with a second name, and head.bias of 20
};

TEST_F(ShardedModel, IsWrittenAsHuggingFaceDoesAndReadFromEitherPath) {
  save_model(*model_, path_, {.max_shard_bytes = 70});
  EXPECT_EQ(names_in(folder_.path()),
            (Names{index_name, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}));
  const auto first = load_safetensors(folder_.path() / "model-00001-of-00002.safetensors");
  EXPECT_EQ(first.metadata.at("head.weight"), "embedding.weight");
  EXPECT_EQ(first.metadata.at("format"), "pt");
  EXPECT_EQ(checkpoint::read_text(folder_.path() / index_name, 1000).text,
            R"({
  "metadata": {
    "total_size": 80
  },
  "weight_map": {
    "embedding.weight": "model-00001-of-00002.safetensors",
    "head.bias": "model-00002-of-00002.safetensors"
  }
}
)");
  expect_loaded(*model_, path_);
  expect_loaded(*model_, folder_.path() / index_name);
}

TEST_F(ShardedModel, AModelThatFitsIsOneFile) {
  save_model(*model_, path_, {.max_shard_bytes = 80});
  EXPECT_EQ(names_in(folder_.path()), Names{"model.safetensors"});
  expect_loaded(*model_, path_);
}

TEST_F(ShardedModel, ALargeTensorHasAFileOfItsOwn) {
  save_model(*model_, path_, {.max_shard_bytes = 0});
  EXPECT_EQ(names_in(folder_.path()).size(), 3U);
  expect_loaded(*model_, path_);
}

TEST_F(ShardedModel, AnotherFormReplacesTheEarlierOne) {
  checkpoint::write_text(folder_.path() / "model-notes.safetensors", "of the user");
  save_model(*model_, path_, {.max_shard_bytes = 70});
  save_model(*model_, path_);
  EXPECT_EQ(names_in(folder_.path()), (Names{"model-notes.safetensors", "model.safetensors"}));
  save_model(*model_, path_, {.max_shard_bytes = 70});
  EXPECT_FALSE(names_in(folder_.path()).contains("model.safetensors"));
  expect_loaded(*model_, path_);
}

TEST_F(ShardedModel, ADamagedIndexIsRefused) {
  save_model(*model_, path_, {.max_shard_bytes = 70});
  const auto expect_refused = [&](const std::string& index, const std::string& reason) {
    checkpoint::write_text(folder_.path() / index_name, index);
    expect_error<CheckpointError>([&] { load_model(*model_, path_); }, {index_name, reason});
  };
  expect_refused("{", "parse");
  expect_refused("[]", "type");
  expect_refused("{}", "weight_map");
  expect_refused(R"({"weight_map": {"head.bias": 3}})", "type");
  expect_refused(R"({"weight_map": {"head.bias": "../model-00001-of-00002.safetensors"}})", "'head.bias'");
  expect_refused(R"({"weight_map": {"head.bias": ""}})", "'head.bias'");
  expect_refused(R"({"weight_map": {"head.bias": "model-00001-of-00002.safetensors"}})", "'head.bias'");
  expect_refused(std::string(1000, '['), "nested");
}

TEST_F(ShardedModel, AFailedSaveKeepsTheEarlierFile) {
  save_model(*model_, path_);
  EXPECT_THROW(save_safetensors(path_, {.tensors = {{"a", at::ones({2})}, {"b", at::ones({2}).to_sparse()}}}),
               UsageError);
  EXPECT_EQ(names_in(folder_.path()), Names{"model.safetensors"});
  expect_loaded(*model_, path_);
}

TEST_F(ShardedModel, ASparseBufferIsRefusedByName) {
  model_->register_buffer("mask", at::ones({2}).to_sparse());
  for (const std::optional<std::uint64_t> most : {std::optional<std::uint64_t>(), {70}}) {
    expect_error<UsageError>([&] { save_model(*model_, path_, {.max_shard_bytes = most}); }, {"'mask'", "not dense"});
  }
  EXPECT_TRUE(names_in(folder_.path()).empty());
}

TEST_F(ShardedModel, AFailedSaveKeepsTheEarlierShards) {
  save_model(*model_, path_, {.max_shard_bytes = 70});
  const Names before = names_in(folder_.path());
  const Safetensors not_savable{
      .tensors = {{"embedding.weight", at::ones({5, 3})}, {"head.bias", at::ones({5}, at::kComplexDouble)}}};
  EXPECT_THROW(checkpoint::save_sharded(path_, not_savable, 70), UsageError);
  EXPECT_EQ(names_in(folder_.path()), before);
  expect_loaded(*model_, path_);
}

TEST_F(ShardedModel, AReaderKeepsTheFileThatItOpened) {
  save_model(*model_, path_);
  checkpoint::InputFile reader(path_);
  const std::uint64_t size = reader.size();
  save_safetensors(path_, {.tensors = {{"other", at::ones({1})}}});
  std::vector<std::byte> bytes(size);
  EXPECT_NO_THROW(reader.read(bytes));  // a file that is truncated and written again ends early
}

TEST_F(ShardedModel, ALinkStaysALink) {
  const auto link = folder_.path() / "link";
  save_safetensors(path_, {.tensors = {{"old", at::ones({1})}}});
  std::filesystem::create_symlink("model.safetensors", link);
  save_model(*model_, link);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  expect_loaded(*model_, path_);
}

// Hugging Face's cache has links as names.
TEST_F(ShardedModel, ALinkedIndexStaysALink) {
  const auto index = folder_.path() / index_name;
  save_model(*model_, path_, {.max_shard_bytes = 70});
  std::filesystem::rename(index, folder_.path() / "blob");
  std::filesystem::create_symlink("blob", index);
  fill(*model_, 3);
  save_model(*model_, path_, {.max_shard_bytes = 70});
  EXPECT_TRUE(std::filesystem::is_symlink(index));
  expect_loaded(*model_, path_);
}

TEST_F(ShardedModel, WhatIsNoRegularFileIsWrittenInPlace) {
  const auto device = folder_.path() / "device";
  std::filesystem::create_symlink("/dev/null", device);
  EXPECT_THROW(save_model(*model_, device), CheckpointError);  // it cannot be synced
  EXPECT_TRUE(std::filesystem::is_character_file(device));
}

}  // namespace
}  // namespace tutti::test::sharded_model_test
