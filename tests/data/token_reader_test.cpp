// Valid and damaged token files of nanoGPT and llm.c.
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/samplers/sequential.h>

#include <string>

#include "checkpoint/scratch.h"
#include "data/data_files.h"
#include "tutti/core/error.h"
#include "tutti/data/data_loader.h"
#include "tutti/data/readers/token_windows.h"

namespace tutti::test::token_reader_test {
namespace {

static_assert(IndexedDataset<TokenWindows>);

class TokenReaders : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    write_content(folder_.path() / name, content);
    return folder_.path() / name;
  }
  void expect_refused(const std::string& content, const TokenFileOptions& options, const std::string& why) const {
    const auto path = write("broken.bin", content);
    expect_error<DataError>([&] { TokenFile(path, options); }, {path.string(), why});
  }
  TemporaryFolder folder_;
};

std::vector<std::int64_t> all_of(const TokenFile& file) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(file.size()));
  file.read(0, tokens);
  return tokens;
}

TEST_F(TokenReaders, EveryFormat) {
  const std::vector<std::uint32_t> small = {1, 50256, 65535, 0};
  const std::vector<std::uint32_t> large = {1, 128000, 4294967295, 0};
  const std::vector<std::int64_t> small_expected(small.begin(), small.end());
  const std::vector<std::int64_t> large_expected(large.begin(), large.end());
  const TokenFile bare(write("bare", token_bytes(small)));
  EXPECT_EQ(all_of(bare), small_expected);
  EXPECT_EQ(bare.bits_per_token(), 16);
  const TokenFile wide(write("wide", token_bytes(large, 4)), {.format = TokenFormat::uint32});
  EXPECT_EQ(all_of(wide), large_expected);
  EXPECT_EQ(wide.bits_per_token(), 32);
  for (const auto format : {TokenFormat::automatic, TokenFormat::llm_c}) {
    EXPECT_EQ(all_of(TokenFile(write("gpt2", llm_c_bytes(20240520, 1, 4, token_bytes(small))), {.format = format})),
              small_expected);
    EXPECT_EQ(
        all_of(TokenFile(write("llama3", llm_c_bytes(20240801, 7, 4, token_bytes(large, 4))), {.format = format})),
        large_expected);
  }
  // With TokenFormat::uint16 it reads the header as tokens.
  const TokenFile header(write("h", llm_c_bytes(20240520, 1, 4, token_bytes(small))), {.format = TokenFormat::uint16});
  EXPECT_EQ(header.size(), 516);
}

TEST_F(TokenReaders, DamagedFilesAreRefused) {
  const std::string whole = llm_c_bytes(20240520, 1, 3, token_bytes({1, 2, 3}));
  expect_refused("", {}, "has no tokens");
  expect_refused("abc", {}, "3 bytes, which is not a multiple of the token size 2");
  expect_refused("abcdef", {.format = TokenFormat::uint32}, "6 bytes, which is not a multiple of the token size 4");
  expect_refused(whole.substr(0, 1000), {}, "ends inside its header of 1024 bytes");
  expect_refused(whole.substr(0, whole.size() - 1), {}, "3 tokens, 6 bytes, but 5 follow: it is truncated");
  expect_refused(whole + "xx", {}, "6 bytes, but 8 follow");
  expect_refused(llm_c_bytes(20240520, 2, 3, token_bytes({1, 2, 3})), {}, "version 2; supported is version 1");
  expect_refused(llm_c_bytes(20240520, 1, 0, ""), {}, "has no tokens");
  expect_refused(llm_c_bytes(20240520, 1, 0xFFFFFFFF, ""), {}, "declares -1 tokens");
  expect_refused(token_bytes({1, 2, 3}), {.format = TokenFormat::llm_c}, "not a token file of llm.c");
  expect_error<DataError>([&] { TokenFile(folder_.path() / "missing"); }, {"missing", "No such file"});
  EXPECT_THROW(TokenFile(write("one", token_bytes({1})), {.vocabulary_size = 0}), UsageError);
}

TEST_F(TokenReaders, TokensOutsideTheVocabularyAreFound) {
  std::vector<std::uint32_t> tokens(70000, 7);
  tokens[66000] = 9;
  const TokenFile file(write("tokens", token_bytes(tokens)), {.vocabulary_size = 9});
  const auto names_it = {std::string("tokens"), std::string("token 66000 is 9, but the vocabulary has 9")};
  expect_error<DataError>([&] { file.check(); }, names_it);
  std::vector<std::int64_t> piece(100);
  EXPECT_NO_THROW(file.read(0, piece));
  expect_error<DataError>([&] { file.read(65950, piece); }, names_it);
  EXPECT_NO_THROW(TokenFile(file.path(), {.vocabulary_size = 10}).check());
  EXPECT_NO_THROW(TokenFile(file.path()).check());
}

TEST_F(TokenReaders, RefusesTokensPastTheEnd) {
  const TokenFile file(write("tokens", token_bytes({1, 2, 3})));
  std::vector<std::int64_t> two(2);
  EXPECT_NO_THROW(file.read(1, two));
  EXPECT_THROW(file.read(2, two), UsageError);
  EXPECT_THROW(file.read(-1, two), UsageError);
  EXPECT_THROW(file.read(4, {}), UsageError);
}

std::vector<std::uint32_t> count_up(std::uint32_t count, std::uint32_t first = 0) {
  std::vector<std::uint32_t> tokens;
  for (std::uint32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST_F(TokenReaders, WindowsLieSideBySide) {
  TokenWindows windows(TokenFile(write("tokens", token_bytes(count_up(10)))), {.context = 3});
  ASSERT_EQ(windows.size(), 3U);
  const auto batch = windows.get_batch(std::vector<std::size_t>{2, 0});
  EXPECT_TRUE(batch.data.equal(at::tensor({6, 7, 8, 0, 1, 2}, at::kLong).view({2, 3})));
  EXPECT_TRUE(batch.target.equal(at::tensor({7, 8, 9, 1, 2, 3}, at::kLong).view({2, 3})));
  EXPECT_THROW(windows.get_batch(std::vector<std::size_t>{3}), UsageError);
  const auto size_with = [&](std::uint32_t tokens, std::int64_t stride) {
    return *TokenWindows(TokenFile(write("n", token_bytes(count_up(tokens)))), {.context = 3, .stride = stride}).size();
  };
  EXPECT_EQ(size_with(4, 0), 1U);
  EXPECT_EQ(size_with(6, 0), 1U);
  EXPECT_EQ(size_with(7, 0), 2U);
  EXPECT_EQ(size_with(9, 0), 2U);
  EXPECT_EQ(size_with(10, 1), 7U);
  EXPECT_EQ(size_with(10, 5), 2U);
}

TEST_F(TokenReaders, WindowsStayInTheirFile) {
  const TokenFile first(write("first", token_bytes(count_up(8))));
  const TokenFile second(write("second", token_bytes(count_up(4, 100))));
  TokenWindows windows({first, second, first}, {.context = 3});
  ASSERT_EQ(windows.size(), 5U);
  const auto batch = windows.get_batch(std::vector<std::size_t>{0, 1, 2, 3, 4});
  EXPECT_TRUE(
      batch.data.equal(at::tensor({0, 1, 2, 3, 4, 5, 100, 101, 102, 0, 1, 2, 3, 4, 5}, at::kLong).view({5, 3})));
  EXPECT_TRUE(
      batch.target.equal(at::tensor({1, 2, 3, 4, 5, 6, 101, 102, 103, 1, 2, 3, 4, 5, 6}, at::kLong).view({5, 3})));
}

TEST_F(TokenReaders, WindowsOnRanks) {
  DataLoader loader(TokenWindows(TokenFile(write("tokens", token_bytes(count_up(13)))), {.context = 3}),
                    {.batch_size = 1, .num_workers = 1}, 1, 2);
  std::vector<std::int64_t> begins;
  for (const auto& batch : loader) begins.push_back(batch.data[0][0].item<std::int64_t>());
  EXPECT_EQ(begins, (std::vector<std::int64_t>{3, 9}));
}

TEST_F(TokenReaders, LibTorchsLoaderReadsThemToo) {
  TokenWindows windows(TokenFile(write("tokens", token_bytes(count_up(13)))), {.context = 3});
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(windows, 3);
  std::vector<std::int64_t> begins;
  for (const auto& batch : *loader) {
    for (std::int64_t i = 0; i < batch.data.size(0); ++i) begins.push_back(batch.data[i][0].item<std::int64_t>());
  }
  EXPECT_EQ(begins, (std::vector<std::int64_t>{0, 3, 6, 9}));
}

TEST_F(TokenReaders, InvalidWindowsAreRefused) {
  const TokenFile file(write("tokens", token_bytes(count_up(4))));
  expect_error<DataError>([&] { TokenWindows(file, {.context = 4}); }, {"tokens", "has 4 tokens; a context of 4"});
  EXPECT_THROW(TokenWindows(file, {.context = 0}), UsageError);
  EXPECT_THROW(TokenWindows(file, {.context = 2, .stride = -1}), UsageError);
  EXPECT_THROW(TokenWindows(std::vector<TokenFile>()), UsageError);
  TokenWindows foreign(TokenFile(file.path(), {.vocabulary_size = 3}), {.context = 3});
  EXPECT_THROW(foreign.get_batch(std::vector<std::size_t>{0}), DataError);
}

}  // namespace
}  // namespace tutti::test::token_reader_test
