// Damaged files of training data, the same in every run. A parser returns a layout inside the file or throws DataError;
// it never crashes.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "data/data_files.h"
#include "data/readers/idx_header.h"
#include "data/readers/npy_header.h"
#include "data/readers/token_header.h"
#include "fuzz/mutate.h"
#include "tutti/core/error.h"

namespace tutti::test::readers_test {
namespace {

using readers::parse_idx;
using readers::parse_npy;
using readers::parse_tokens;

/// True if an array of `shape` ends at the end of the file.
bool ends_with_the_file(std::size_t offset, const std::vector<std::int64_t>& shape, std::size_t width,
                        std::size_t file_size) {
  std::uint64_t bytes = width;
  for (const std::int64_t size : shape) {
    if (size < 0) return false;
    bytes *= static_cast<std::uint64_t>(size);
  }
  return offset <= file_size && offset + bytes == file_size;
}

/// Mutates `seeds`. `accepts` parses a file, checks the result, and returns true, or lets DataError through.
template <typename Accepts>
void hammer(const std::vector<std::string>& seeds, const std::vector<std::string>& words, int iterations,
            Accepts accepts) {
  Random random(1);
  int accepted = 0;
  for (int i = 0; i < iterations; ++i) {
    std::string file = seeds[below(seeds.size(), random)];
    for (std::size_t count = 1 + below(3, random); count > 0; --count) mutate(file, seeds, words, random);
    try {
      accepts(std::as_bytes(std::span(file)));
      ++accepted;
    } catch (const DataError&) {
      // The expected error; any other exception fails the test.
    }
    if (testing::Test::HasFailure()) FAIL() << "iteration " << i;
  }
  // Both outcomes occurred.
  EXPECT_GT(accepted, iterations / 1000);
  EXPECT_LT(accepted, iterations / 2);
  for (const std::string& seed : seeds) EXPECT_NO_THROW(accepts(std::as_bytes(std::span(seed))));
}

TEST(ReaderMutations, OfNpyFiles) {
  const std::vector<std::string> seeds = {
      npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n", std::string(24, 'x')),
      npy_bytes("{'descr': '|b1', 'fortran_order': True, 'shape': (), }\n", std::string(1, '\1')),
      npy_bytes("{'descr': '>i8', 'fortran_order': False, 'shape': (1,), }\n", std::string(8, '\0'), 2),
      npy_bytes("{'descr': '<c16', 'fortran_order': False, 'shape': (0, 7), }\n", "", 3)};
  const std::vector<std::string> words = {"{",
                                          "}",
                                          "(",
                                          ")",
                                          ",",
                                          ":",
                                          "'",
                                          "\"",
                                          "True",
                                          "L",
                                          "0",
                                          "-1",
                                          "1)",
                                          "'O'",
                                          "'<f8'",
                                          "'shape'",
                                          "descr",
                                          "<u2",
                                          "(2, 3,)",
                                          "[('a'",
                                          "\\",
                                          "\n",
                                          " ",
                                          "99999999999999999999",
                                          "9223372036854775807"};
  hammer(seeds, words, 20'000, [](std::span<const std::byte> file) {
    const auto header = parse_npy(file);
    EXPECT_TRUE(ends_with_the_file(header.data_offset, header.shape, header.width, file.size()));
  });
  // The dict alone, because a damaged length would hide it.
  const std::vector<std::string> dicts = {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n",
                                          "{\"shape\":(7L,),\"descr\":\"|i1\",\"fortran_order\":True}"};
  hammer(dicts, words, 20'000, [](std::span<const std::byte> dict) {
    const auto header = readers::parse_npy_dict({reinterpret_cast<const char*>(dict.data()), dict.size()});
    for (const std::int64_t size : header.shape) EXPECT_GE(size, 0);
    EXPECT_LE(header.width, 16U);
    EXPECT_GE(header.width, 1U);
  });
}

TEST(ReaderMutations, OfIdxFiles) {
  const std::vector<std::string> seeds = {idx_bytes(8, {2, 2, 3}, std::string(12, 'x')),
                                          idx_bytes(0x0D, {3}, std::string(12, 'y')), idx_bytes(0x0E, {0, 5}, "")};
  hammer(
      seeds, {std::string(4, '\0'), std::string(4, '\xFF'), "\1", "\x0C"}, 20'000, [](std::span<const std::byte> file) {
        const auto header = parse_idx(file);
        EXPECT_TRUE(ends_with_the_file(header.data_offset, header.shape, readers::width_of(header.type), file.size()));
      });
}

TEST(ReaderMutations, OfTokenFiles) {
  const std::vector<std::string> seeds = {llm_c_bytes(20240520, 1, 3, std::string(6, '\1')),
                                          llm_c_bytes(20240801, 7, 2, std::string(8, '\1'))};
  for (const auto format : {TokenFormat::automatic, TokenFormat::llm_c}) {
    hammer(seeds, {std::string(2, '\0'), std::string(4, '\xFF'), "\1"}, 10'000,
           [format](std::span<const std::byte> file) {
             const auto layout = parse_tokens(file, format);
             EXPECT_TRUE(ends_with_the_file(layout.offset, {layout.count}, layout.width, file.size()));
           });
  }
}

}  // namespace
}  // namespace tutti::test::readers_test
