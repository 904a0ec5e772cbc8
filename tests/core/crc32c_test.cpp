#include "tutti/detail/core/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>

namespace tutti::crc32c_test {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// RFC 3720, appendix B.4.
TEST(Crc32c, EqualsTheStandardsValues) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283U);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8A9136AAU);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xFF'))), 0x62A8AB43U);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Crc32c, ContinuesFromTheChecksumOfEarlierBytes) {
  const std::string_view text = "one half, and the other one";
  EXPECT_EQ(crc32c(bytes_of(text.substr(11)), crc32c(bytes_of(text.substr(0, 11)))), crc32c(bytes_of(text)));
}

}  // namespace
}  // namespace tutti::crc32c_test
