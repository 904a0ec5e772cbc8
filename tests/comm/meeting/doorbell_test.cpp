// One process.
#include "comm/meeting/doorbell.h"

#include <gtest/gtest.h>

#include <memory>

namespace tutti::comm::doorbell_test {
namespace {

TEST(Doorbell, IsHeardUntilItIsGone) {
  auto bell = std::make_unique<Doorbell>("127.0.0.1");
  const auto address = bell->address();
  ASSERT_TRUE(address);
  // More often than the system keeps waiting.
  for (int times = 0; times < 2000; ++times) {
    ASSERT_EQ(ring(*address), Ring::heard) << times;
    bell->answer();
  }
  bell.reset();
  EXPECT_EQ(ring(*address), Ring::refused);
}

TEST(Doorbell, ThereIsNoneWhereItCannotBe) {
  for (const auto* host : {"", "no address", "203.0.113.1"}) EXPECT_FALSE(Doorbell(host).address()) << host;
  EXPECT_FALSE(Doorbell().address());
}

}  // namespace
}  // namespace tutti::comm::doorbell_test
