#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "gpt/corpus.h"
#include "gpt/generate.h"
#include "gpt/model.h"

namespace gpt {
namespace {

namespace fs = std::filesystem;

class Corpus : public testing::Test {
 protected:
  Corpus() {
    std::string name = (fs::temp_directory_path() / "tutti-corpus-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
  }
  ~Corpus() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& content) const {
    const auto file = folder_ / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file;
  }
  static std::string string_of(const at::Tensor& text) {
    return {static_cast<const char*>(text.const_data_ptr()), text.nbytes()};
  }

  fs::path folder_;
};

TEST_F(Corpus, ReadsAFolderInTheOrderOfItsPaths) {
  write("b", "2");
  write("c/d/z", "3");
  write("a.h", "1");
  write("e", "4");
  EXPECT_EQ(string_of(read_text(folder_)), "1234");
}

TEST_F(Corpus, OmitsHiddenAndBinaryFiles) {
  write("a", "text");
  write("b", std::string("bin\0ary", 7));
  write(".hidden", "no");
  write(".git/config", "no");
  EXPECT_EQ(string_of(read_text(folder_)), "text");
}

TEST_F(Corpus, ReadsAFileUnchanged) {
  const auto file = write(".a", std::string("any\0thing\xff", 10));
  EXPECT_EQ(string_of(read_text(file)), std::string("any\0thing\xff", 10));
}

TEST_F(Corpus, RefusesPathsWithoutText) {
  EXPECT_THROW(read_text(folder_ / "missing"), std::runtime_error);
  EXPECT_THROW(read_text(folder_), std::runtime_error);
  EXPECT_THROW(read_text(write("empty", "")), std::runtime_error);
}

TEST(HoldOut, HoldsOutTheLastTenth) {
  const auto split = hold_out(at::arange(200, at::kByte), 9);
  EXPECT_TRUE(split.training.equal(at::arange(180, at::kByte)));
  EXPECT_TRUE(split.held_out.equal(at::arange(180, 200, at::kByte)));
}

TEST(HoldOut, HoldsOutAtLeastAWindow) {
  EXPECT_EQ(hold_out(at::zeros({20}, at::kByte), 9).held_out.numel(), 10);
  EXPECT_THROW(hold_out(at::zeros({19}, at::kByte), 9), std::runtime_error);
}

TEST(TextWindows, TargetsAreTheBytesThatFollow) {
  const TextWindows windows(at::arange(10, at::kByte), 3);
  EXPECT_EQ(windows.size(), 3u);
  const auto batch = windows.get_batch(std::vector<std::size_t>{2, 0});
  EXPECT_TRUE(batch.tokens.equal(at::tensor({6, 7, 8, 0, 1, 2}, at::kLong).view({2, 3})));
  EXPECT_TRUE(batch.targets.equal(at::tensor({7, 8, 9, 1, 2, 3}, at::kLong).view({2, 3})));
  EXPECT_EQ(TextWindows(at::zeros({9}, at::kByte), 3).size(), 2u);  // the last window lacks the byte after it
}

TEST(Gpt, HasTheParametersOfItsPythonTwin) {
  // nn.TransformerEncoderLayer(256, 4, 1024) six times between an Embedding and a Linear.
  const Gpt model(GptOptions{.vocabulary = 4096,
                             .width = 256,
                             .layers = 6,
                             .heads = 4,
                             .context = 64,
                             .learned_positions = false,
                             .final_norm = false});
  std::int64_t count = 0;
  for (const auto& parameter : model->parameters()) count += parameter.numel();
  EXPECT_EQ(count, 6839808);
}

TEST(Gpt, DoesNotLookAhead) {
  const at::NoGradGuard no_grad;
  Gpt model(GptOptions{.width = 16, .layers = 2, .heads = 2, .context = 8});
  const auto tokens = at::arange(8).view({1, 8});
  auto changed = tokens.clone();
  changed[0][5] = 99;
  const auto difference = (model(tokens) - model(changed)).abs().sum(-1)[0];
  EXPECT_EQ(difference.narrow(0, 0, 5).max().item<float>(), 0);
  EXPECT_GT(difference.narrow(0, 5, 3).min().item<float>(), 0);
}

TEST(Gpt, StartsWithTheLossOfAUniformGuess) {
  Gpt model(GptOptions{.width = 16, .layers = 2, .heads = 2, .context = 8});
  const auto tokens = at::arange(16).view({2, 8});
  EXPECT_NEAR(gpt_loss(model, tokens, tokens).item<double>(), std::log(256.0), 0.1);
}

TEST(Generate, ContinuesThePromptBeyondTheContext) {
  Gpt model(GptOptions{.width = 16, .layers = 1, .heads = 2, .context = 8});
  const auto text = generate(model, {.prompt = "int main", .bytes = 20, .seed = 3});
  EXPECT_EQ(text.size(), 28u);
  EXPECT_TRUE(text.starts_with("int main"));
  EXPECT_EQ(text, generate(model, {.prompt = "int main", .bytes = 20, .seed = 3}));
  EXPECT_NE(text, generate(model, {.prompt = "int main", .bytes = 20, .seed = 4}));
  for (const char character : text)
    EXPECT_TRUE(character == '\n' || character == '\t' || static_cast<unsigned char>(character) >= 32);
}

}  // namespace
}  // namespace gpt
