// Damaged .pt2 files, the same in every run. Loading returns a module or throws an error of tutti; it never crashes,
// and it allocates no more memory than the size of the file.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/scratch.h"
#include "exported/expression.h"
#include "exported/pt2_file.h"
#include "exported/zip_directory.h"
#include "fuzz/mutate.h"
#include "tutti/core/error.h"
#include "tutti/exported/exported_module.h"

namespace tutti::test::exported_test {
namespace {

const std::vector<std::string> words =
    json_words({"true", "\"as_int\"", "\"as_tensor\"", "\"as_none\"", "\"as_graph\"", "\"name\"", "\"x\"", "\"..\"",
                "PK\1\2", "PK\3\4", "\xFF\xFF\xFF\xFF"});

// Loads and runs the file. Returns true if it is a valid module.
bool loads(const std::filesystem::path& path) {
  try {
    ExportedModule model(path);
    try {
      model.forward(at::ones({3, 3}));
    } catch (const Error&) {
      // The damaged program has other inputs.
    } catch (const c10::Error&) {
      // The damaged program has invalid operators.
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(ExportedMutations, OfTheArchive) {
  const TemporaryFolder folder;
  const std::string whole = zip_of(small_model());
  Random random(1);
  int accepted = 0;
  constexpr int iterations = 1'500;
  for (int i = 0; i < iterations; ++i) {
    std::string file = whole;
    mutate(file, {whole}, words, random);
    write_content(folder.path() / "m.pt2", file);
    if (loads(folder.path() / "m.pt2")) ++accepted;
  }
  EXPECT_LT(accepted, iterations / 2);
}

TEST(ExportedMutations, OfTheDirectory) {
  const std::string whole = zip_of(small_model());
  Random random(2);
  for (int i = 0; i < 20'000; ++i) {
    std::string file = whole;
    for (std::size_t count = 1 + below(3, random); count > 0; --count) mutate(file, {whole}, words, random);
    try {
      const auto records =
          exported::read_zip_directory(file.size(), [&](std::uint64_t offset, std::span<std::byte> bytes) {
            ASSERT_LE(offset, file.size());
            ASSERT_LE(bytes.size(), file.size() - offset);
            std::memcpy(bytes.data(), file.data() + offset, bytes.size());
          });
      std::uint64_t end = 0;
      for (const auto& record : records) {
        ASSERT_LE(end, record.offset);
        end = record.offset + record.size;
        ASSERT_LE(end, file.size());
      }
    } catch (const CheckpointError&) {
      // The expected error.
    }
  }
}

TEST(ExportedMutations, OfTheProgramAndTheWeights) {
  const TemporaryFolder folder;
  Random random(3);
  int accepted = 0;
  constexpr int iterations = 3'000;
  for (int i = 0; i < iterations; ++i) {
    Records records = small_model();
    std::string& text = records[below(3, random) != 0 ? "models/model.json" : "data/weights/model_weights_config.json"];
    mutate(text, {small_program().dump(), small_weights().dump()}, words, random);
    write_content(folder.path() / "m.pt2", zip_of(records));
    if (loads(folder.path() / "m.pt2")) ++accepted;
  }
  // Both outcomes occurred.
  EXPECT_GT(accepted, iterations / 100);
  EXPECT_LT(accepted, iterations / 2);
}

TEST(ExportedMutations, OfExpressions) {
  const std::vector<std::string> seeds = {"Add(Mul(Integer(2), Symbol('s0', positive=True)), Integer(1))",
                                          "1 <= L['x'].size()[0] < 2**s0 and not Eq(Mod(s0, 3), -s0 // 2)"};
  const std::vector<std::string> pieces = {"(", ")", "[",    "]",    "'",    "**", "//",
                                           "%", "-", "not ", " or ", "Max(", "s0", "9"};
  Random random(4);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = seeds[below(seeds.size(), random)];
    for (std::size_t count = 1 + below(3, random); count > 0; --count) mutate(text, seeds, pieces, random);
    try {
      exported::Expression::parse(text).evaluate([](const std::string&) { return std::optional<std::int64_t>(3); });
    } catch (const Error&) {
      // The expected error; any other exception fails the test.
    }
  }
}

}  // namespace
}  // namespace tutti::test::exported_test
