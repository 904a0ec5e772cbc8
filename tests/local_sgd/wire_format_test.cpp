// Encodes and decodes numbers in each lossy wire format.
#include "local_sgd/wire_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tutti::local_sgd::wire_format_test {
namespace {

std::vector<float> numbers(std::size_t count, unsigned seed, float size = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, size);
  std::vector<float> values(count);
  for (float& value : values) value = draw(random);
  return values;
}

std::vector<float> through(WireFormat format, const std::vector<float>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(encoded_bytes(format, count)));
  encode(format, values, bytes);
  std::vector<float> result(values.size());
  decode(format, bytes, result);
  return result;
}

TEST(WireFormat, Bf16RoundsToEightBits) {
  const auto values = numbers(1000, 2, 100);
  const auto result = through(WireFormat::bf16, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(result[i], values[i], std::abs(values[i]) / 256) << values[i];
  }
}

TEST(WireFormat, Int8IsWithinHalfAStepOfItsBlock) {
  for (const std::size_t count : {1U, 255U, 256U, 257U, 1000U}) {
    auto values = numbers(count, 3);
    for (std::size_t i = 0; i < count; ++i) values[i] *= i < 256 ? 1e-6F : 1e6F;  // blocks of very different magnitude
    const auto result = through(WireFormat::int8, values);
    for (std::size_t begin = 0; begin < count; begin += 256) {
      float largest = 0;
      for (std::size_t i = begin; i < std::min(count, begin + 256); ++i)
        largest = std::max(largest, std::abs(values[i]));
      for (std::size_t i = begin; i < std::min(count, begin + 256); ++i) {
        EXPECT_LE(std::abs(result[i] - values[i]), largest / 127 * 0.5001F);
      }
    }
  }
}

TEST(WireFormat, SizesAreHalfAndAQuarter) {
  EXPECT_EQ(encoded_bytes(WireFormat::bf16, 1 << 20), 2 << 20);
  EXPECT_LE(static_cast<double>(encoded_bytes(WireFormat::int8, 1 << 20)), 0.27 * (4 << 20));
  EXPECT_EQ(encoded_bytes(WireFormat::int8, 257), 257 + 2 * 4);
  EXPECT_EQ(encoded_bytes(WireFormat::int8, 0), 0);
}

TEST(WireFormat, EncodedValueAndErrorAddUpToTheInput) {
  for (const WireFormat format : {WireFormat::bf16, WireFormat::int8}) {
    const std::size_t count = 1000;
    std::vector<float> lost(count, 0);
    std::vector<double> input(count, 0), sent(count, 0);
    for (unsigned round = 0; round < 20; ++round) {
      const auto values = numbers(count, 10 + round);
      std::vector<std::byte> bytes(static_cast<std::size_t>(encoded_bytes(format, count)));
      encode_with_feedback(format, values, lost, bytes);
      std::vector<float> decoded(count);
      decode(format, bytes, decoded);
      for (std::size_t i = 0; i < count; ++i) {
        input[i] += static_cast<double>(values[i]);
        sent[i] += static_cast<double>(decoded[i]);
        EXPECT_NEAR(sent[i] + static_cast<double>(lost[i]), input[i], 1e-5);
      }
    }
  }
}

TEST(WireFormat, NaNAndInfinityNeverBecomeFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto values = numbers(300, 4);
    values[260] = bad;
    EXPECT_FALSE(std::isfinite(through(WireFormat::bf16, values)[260]));
    const auto result = through(WireFormat::int8, values);
    EXPECT_FALSE(std::isfinite(result[260]));
    EXPECT_TRUE(std::isfinite(result[0]));  // another block
  }
}

TEST(WireFormat, EncodesZerosAndTheSmallestNumbers) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const WireFormat format : {WireFormat::bf16, WireFormat::int8}) {
    for (const float value : through(format, {0, 0, -0.0F, tiny, -tiny})) {
      EXPECT_LE(std::abs(value), 200 * tiny);
    }
  }
}

}  // namespace
}  // namespace tutti::local_sgd::wire_format_test
