// Damaged files, the same in every run. A parser returns its result or throws CheckpointError; it never crashes.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/owner_file.h"
#include "checkpoint/safetensors_layout.h"
#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "fuzz/layout_invariants.h"
#include "fuzz/mutate.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/comm/thread_ranks.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti::test::mutations_test {
namespace {

const std::vector<std::string> words =
    json_words({"\"dtype\"", "\"F64\"", "\"shape\"", "\"data_offsets\"", "\"__metadata__\"", "\\u0000"});

// The bytes of a file with this content.
std::string bytes_of(const Safetensors& content) {
  const TemporaryFolder folder;
  save_safetensors(folder.path() / "file", content);
  return content_of(folder.path() / "file");
}

std::vector<std::string> seeds() {
  return {bytes_of({}), bytes_of({.tensors = {{"w", at::ones({2, 3})}}}),
          bytes_of({.tensors = {{"a", at::arange(3, at::kLong)}, {"b", at::ones({})}, {"c", at::ones({0, 4})}},
                    .metadata = {{"k", "v"}, {"x", "\"\n"}}})};
}

// Corrects the length field of most files, because a wrong one ends the parse early.
void repair_length(std::string& file, std::size_t data) {
  if (file.size() < 8 + data) return;
  const std::uint64_t length = file.size() - 8 - data;
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>((length >> (8 * i)) & 0xFF);
}

TEST(Mutations, TheParserReturnsALayoutOrThrows) {
  const auto files = seeds();
  Random random(1);
  int accepted = 0;
  constexpr int iterations = 20'000;
  for (int i = 0; i < iterations; ++i) {
    const std::string& seed = files[below(files.size(), random)];
    std::uint64_t header = 0;
    std::memcpy(&header, seed.data(), sizeof(header));
    std::string file = seed;
    for (std::size_t count = 1 + below(3, random); count > 0; --count) mutate(file, files, words, random);
    if (below(4, random) != 0) repair_length(file, seed.size() - 8 - header);
    try {
      const auto layout = checkpoint::parse_safetensors(std::as_bytes(std::span(file)));
      ++accepted;
      ASSERT_TRUE(layout_holds(layout, file.size())) << "iteration " << i;
    } catch (const CheckpointError&) {
      // The expected error; any other exception fails the test.
    }
  }
  // Both outcomes occurred.
  EXPECT_GT(accepted, iterations / 100);
  EXPECT_LT(accepted, iterations / 2);
}

// Forged manifests with the right checksum, and owner files.
TEST(Mutations, AManifestIsParsedOrRefused) {
  const std::string whole = checkpoint::manifest_text(
      {.step = 3, .world_size = 2, .metric = 0.5, .run = "r", .files = {{"rank_0.json", {.size = 3, .crc = 7}}}});
  const std::string owner = checkpoint::owner_text();
  constexpr std::size_t covered = 22;  // bytes before those that the checksum covers
  Random random(3);
  int accepted = 0;
  constexpr int iterations = 20'000;
  for (int i = 0; i < iterations; ++i) {
    std::string rest = whole.substr(covered);
    for (std::size_t count = 1 + below(3, random); count > 0; --count) mutate(rest, {whole, owner}, words, random);
    std::array<char, 9> crc{};
    std::snprintf(crc.data(), crc.size(), "%08x", crc32c(std::as_bytes(std::span(rest))));
    try {
      const auto manifest = checkpoint::parse_manifest(std::string("{\"crc32c\": \"") + crc.data() + "\"," + rest);
      ++accepted;
      ASSERT_GE(manifest.world_size, 1);
      for (const auto& [name, digest] : manifest.files) ASSERT_EQ(name.find('/'), std::string::npos);
    } catch (const CheckpointError&) {
      // The expected error; any other exception fails the test.
    }
    std::string text = owner;
    mutate(text, {whole, owner}, words, random);
    checkpoint::owner_has_exited(text);
    checkpoint::owner_name(text);
  }
  EXPECT_GT(accepted, iterations / 100);
  EXPECT_LT(accepted, iterations / 2);
}

bool equal(const Checkpoint& a, const Checkpoint& b) {
  if (a.info.step != b.info.step || a.info.world_size != b.info.world_size || a.info.metric != b.info.metric)
    return false;
  return same(a.shared, b.shared) &&
         std::equal(a.per_rank.begin(), a.per_rank.end(), b.per_rank.begin(), b.per_rank.end(),
                    [](const auto& x, const auto& y) { return static_cast<bool>(same(x, y)); });
}

TEST(Mutations, ADamagedCheckpointIsRefusedOrUnchanged) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "checkpoint_0";
  run_thread_ranks(2, [&](const Communicator& communicator) {
    CheckpointContent content{.step = 3, .metric = 0.5};
    content.shared["model"].set("w", at::ones({2, 3}));
    content.shared["optimizer"].set("lr", 0.1);
    content.shared["optimizer"].set("text", std::string("a"));
    content.shared["optimizer"].set("list", std::vector<double>{1, 2});
    content.per_rank.set("cursor", std::int64_t{communicator.rank()});
    content.per_rank.set("generator", at::arange(4, at::kByte));
    write_checkpoint(path, content, communicator);
  });
  const Checkpoint whole = read_checkpoint(path);
  std::vector<std::filesystem::path> names;
  std::vector<std::string> contents;
  for (const auto& entry : std::filesystem::directory_iterator(path)) names.push_back(entry.path());
  std::sort(names.begin(), names.end());
  for (const auto& name : names) contents.push_back(content_of(name));
  Random random(2);
  int refused = 0;
  for (std::size_t file = 0; file < names.size(); ++file) {
    for (int i = 0; i < 100; ++i) {
      std::string damaged = contents[file];
      mutate(damaged, contents, words, random);
      write_content(names[file], damaged);
      try {
        EXPECT_TRUE(equal(read_checkpoint(path), whole)) << names[file];
      } catch (const CheckpointError&) {
        ++refused;
      }
    }
    write_content(names[file], contents[file]);
  }
  EXPECT_GT(refused, 100);
  EXPECT_TRUE(equal(read_checkpoint(path), whole));
}

}  // namespace
}  // namespace tutti::test::mutations_test
