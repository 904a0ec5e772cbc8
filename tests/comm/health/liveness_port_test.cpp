// One process.
#include "comm/health/liveness_port.h"

#include <gtest/gtest.h>

#include <memory>

namespace tutti::comm::liveness_port_test {
namespace {

TEST(LivenessPort, IsReachableUntilItIsClosed) {
  auto port = std::make_unique<LivenessPort>("127.0.0.1");
  const auto address = port->address();
  ASSERT_TRUE(address);
  // More connections than the system keeps waiting.
  for (int times = 0; times < 2000; ++times) {
    ASSERT_EQ(probe(*address), Probe::connected) << times;
    port->drain_connections();
  }
  port.reset();
  EXPECT_EQ(probe(*address), Probe::refused);
}

TEST(LivenessPort, HasNoAddressOnAnInvalidHost) {
  for (const auto* host : {"", "no address", "203.0.113.1"}) EXPECT_FALSE(LivenessPort(host).address()) << host;
  EXPECT_FALSE(LivenessPort().address());
}

}  // namespace
}  // namespace tutti::comm::liveness_port_test
