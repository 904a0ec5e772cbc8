// Encodes and decodes numbers as 8-bit integers, on one process.
#include "comm/reduction/int8_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tutti::comm::int8_blocks_test {
namespace {

constexpr std::size_t block = 256;
constexpr Rounding both[] = {Rounding::nearest, Rounding::stochastic};

std::vector<float> normal(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> values(count);
  for (float& value : values) value = draw(random);
  return values;
}

std::vector<float> through(const std::vector<float>& values, Rounding rounding) {
  std::vector<std::byte> bytes(int8_bytes(values.size()));
  encode_int8(values, bytes, rounding);
  std::vector<float> decoded(values.size());
  decode_int8(bytes, decoded);
  return decoded;
}

TEST(Int8Blocks, RoundsToAMultipleOfTheBlocksStep) {
  for (const std::size_t count : {0U, 1U, 255U, 256U, 257U, 1000U}) {
    auto values = normal(count, 3);
    for (std::size_t i = 0; i < count; ++i) values[i] *= i < block ? 1e-6F : 1e6F;  // blocks of other magnitude
    for (const Rounding rounding : both) {
      const auto decoded = through(values, rounding);
      const float steps = rounding == Rounding::nearest ? 0.5001F : 1.0001F;
      for (std::size_t begin = 0; begin < count; begin += block) {
        const std::size_t end = std::min(count, begin + block);
        float largest = 0;
        for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
        for (std::size_t i = begin; i < end; ++i) {
          EXPECT_LE(std::abs(decoded[i] - values[i]), largest / 127 * steps) << i << " of " << count;
        }
      }
    }
  }
}

TEST(Int8Blocks, StochasticRoundingIsRightOnAverage) {
  // Numbers of a twentieth of a step, which the nearest multiple loses, beside one large number in each block.
  auto values = normal(100 * block, 5);
  double sum = 0, decoded_sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = i % block == 0 ? 127.0F : 0.05F + 0.001F * values[i];
    if (i % block != 0) sum += static_cast<double>(values[i]);
  }
  const auto decoded = through(values, Rounding::stochastic);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % block != 0) decoded_sum += static_cast<double>(decoded[i]);
  }
  EXPECT_NEAR(decoded_sum, sum, 5 * std::sqrt(sum));  // five standard deviations
  EXPECT_EQ(decoded, through(values, Rounding::stochastic)) << "equal messages are rounded equally";
}

TEST(Int8Blocks, MultiplesOfTheStepKeepTheirValue) {
  std::vector<float> values;
  for (int i = -127; i <= 127; ++i) values.push_back(static_cast<float>(i) * 0.25F);
  for (const Rounding rounding : both) EXPECT_EQ(through(values, rounding), values);
}

TEST(Int8Blocks, ABlockWithANumberThatIsNotFiniteIsNaN) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    auto values = normal(3 * block, 4);
    values[block + 7] = bad;
    for (const Rounding rounding : both) {
      const auto decoded = through(values, rounding);
      for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(decoded[i]), i / block == 1) << i;
    }
  }
}

TEST(Int8Blocks, ExtremeMagnitudesKeepTheirSize) {
  constexpr float smallest = std::numeric_limits<float>::denorm_min();
  for (const float one : {std::numeric_limits<float>::max(), 1e-30F, 190 * smallest, smallest, 0.0F}) {
    for (const Rounding rounding : both) {
      const auto decoded = through({one, -one, 0}, rounding);
      EXPECT_LE(std::abs(decoded[0] - one), std::max(one * 0.34F, 64 * smallest)) << one;
      EXPECT_EQ(decoded[1], -decoded[0]) << one;
      EXPECT_EQ(decoded[2], 0) << one;
    }
  }
}

}  // namespace
}  // namespace tutti::comm::int8_blocks_test
