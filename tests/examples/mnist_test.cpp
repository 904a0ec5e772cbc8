// examples/mnist on 1 and 2 ranks, with a small dataset in MNIST's format.
#include <cmath>
#include <fstream>
#include <regex>
#include <vector>

#include "data/data_files.h"
#include "examples/programs.h"
#include "support/temporary_folder.h"

namespace tutti::test::mnist_test {
namespace {

const std::string mnist = MNIST_PROGRAM;
const std::string on_two_ranks = std::string(TUTTI_COMMAND) + " launch -n 2 -- ";

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Writes `count` images of noise with a bar, whose position is the label.
void write_images(const std::filesystem::path& folder, const std::string& part, std::uint32_t count) {
  std::string pixels, labels;
  std::uint32_t noise = count;
  for (std::uint32_t image = 0; image < count; ++image) {
    const std::uint32_t label = image * 7 % 10;
    labels += static_cast<char>(label);
    for (std::uint32_t pixel = 0; pixel < 28 * 28; ++pixel) {
      noise = noise * 1664525 + 1013904223;
      const bool bar = pixel / 28 / 2 == label + 2;
      pixels += static_cast<char>((bar ? 180 : 0) + (noise >> 26));
    }
  }
  write(folder / (part + "-images-idx3-ubyte"), idx_bytes(8, {count, 28, 28}, pixels));
  write(folder / (part + "-labels-idx1-ubyte"), idx_bytes(8, {count}, labels));
}

class MnistProgram : public testing::Test {
 protected:
  MnistProgram() {
    write_images(folder_.path(), "train", 320);
    write_images(folder_.path(), "t10k", 45);
  }
  std::string data() const { return " --data " + folder_.path().string(); }

  TemporaryFolder folder_;
};

struct Epoch {
  double loss;
  int recognized;
  int samples;
};

std::vector<Epoch> epochs_in(const std::string& output) {
  std::vector<Epoch> epochs;
  const std::regex line("epoch [0-9]+: test loss ([0-9.e-]+), ([0-9]+) of ([0-9]+) recognized\n");
  for (auto match = std::sregex_iterator(output.begin(), output.end(), line); match != std::sregex_iterator();
       ++match) {
    epochs.push_back({std::stod((*match)[1]), std::stoi((*match)[2]), std::stoi((*match)[3])});
  }
  return epochs;
}

// The test data do not fill the batches of both ranks; each image must count once.
TEST_F(MnistProgram, TwoRanksEqualOneRankWithTwiceTheBatchSize) {
  const auto alone = run(mnist + data() + " --batch-size 16 --epochs 4");
  const auto ranks = run(on_two_ranks + mnist + data() + " --batch-size 8 --epochs 4");
  ASSERT_EQ(alone.exit_code, 0);
  ASSERT_EQ(ranks.exit_code, 0);
  const auto expected = epochs_in(alone.output);
  const auto actual = epochs_in(ranks.output);
  ASSERT_EQ(expected.size(), 4U) << alone.output;
  ASSERT_EQ(actual.size(), 4U) << ranks.output;  // printed once
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i].loss, expected[i].loss, 1e-3 * expected[i].loss);
    EXPECT_NEAR(actual[i].recognized, expected[i].recognized, 1);
    EXPECT_EQ(expected[i].samples, 45);
    EXPECT_EQ(actual[i].samples, 45);
  }
  EXPECT_GT(expected.back().recognized, 36) << alone.output;
}

TEST_F(MnistProgram, RefusesBadInputInOneLine) {
  expect_refusal(mnist, 2, "mnist: --data is required");
  expect_refusal(mnist + data() + " --epochs 0", 2, "--epochs");
  expect_refusal(mnist + " --data /no/such/folder", 1, "mnist: /no/such/folder/train-images-idx3-ubyte: ");
  expect_refusal(std::string(PLAIN_PROGRAM) + " --data /no/such/folder", 1, "mnist: ");
  const auto labels = folder_.path() / "t10k-labels-idx1-ubyte";
  const std::string whole = content_of(labels);
  write(labels, whole.substr(0, whole.size() - 1));
  expect_refusal(mnist + data(), 1, "mnist: " + labels.string() + ": ");
  write(labels, "no idx file");
  expect_refusal(mnist + data(), 1, "mnist: " + labels.string() + ": ");
  const auto ranks = run(on_two_ranks + mnist + data() + " 2>&1");
  EXPECT_NE(ranks.exit_code, 0);
  EXPECT_NE(ranks.output.find(labels.string() + ": "), std::string::npos) << ranks.output;
}

TEST(MnistExample, FromZeroShowsTheDifferenceToThePlainProgram) {
  const std::string sources = MNIST_SOURCES;
  const auto difference =
      run("diff -U1 --label plain.cpp --label mnist.cpp " + sources + "/plain.cpp " + sources + "/mnist.cpp");
  EXPECT_EQ(difference.exit_code, 1);
  const std::string page = content_of(PORT_PAGE);
  EXPECT_NE(page.find("```diff\n" + difference.output + "```\n"), std::string::npos) << difference.output;
}

}  // namespace
}  // namespace tutti::test::mnist_test
