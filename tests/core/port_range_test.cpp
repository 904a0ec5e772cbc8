// Ranks: none.
#include "core/port_range.h"

#include <gtest/gtest.h>

#include "core/bound_socket.h"
#include "core/socket.h"
#include "tutti/core/error.h"

namespace tutti::test::port_range_test {
namespace {

PortRange read(const std::string& text) {
  return read_port_range(
      [&](const std::string& name) { return name == "TUTTI_PORT_RANGE" ? std::optional(text) : std::nullopt; });
}

std::string text_of(const PortRange& range) {
  return std::to_string(range.first) + "-" + std::to_string(range.last);
}

TEST(PortRange, IsTwoPortsOrOne) {
  EXPECT_EQ(read("29500-29600"), (PortRange{.first = 29500, .last = 29600}));
  EXPECT_EQ(read("1-65535"), (PortRange{.first = 1, .last = 65535}));
  EXPECT_EQ(read("29500"), (PortRange{.first = 29500, .last = 29500}));
  EXPECT_EQ(read(""), PortRange{});
  EXPECT_EQ(read_port_range([](const std::string&) { return std::nullopt; }), PortRange{});
  for (const std::string wrong : {"-", "0-5", "5-4", "5-", "-5", "5-65536", "5-6-7", "5 - 6", "a-b"}) {
    EXPECT_THROW(read(wrong), UsageError) << wrong;
  }
}

TEST(PortRange, GivesItsFreePorts) {
  const auto taken = listen_tcp("127.0.0.1");
  const auto port = static_cast<std::uint16_t>(taken.address.port);
  const PortRange range{.first = port, .last = static_cast<std::uint16_t>(std::min(port + 20, 65535))};
  const auto one = listen_tcp("127.0.0.1", range);
  const auto two = bind_to_loopback(std::nullopt, range);
  const auto three = bind_everywhere(std::nullopt, range);
  for (const int got : {one.address.port, static_cast<int>(two.port), static_cast<int>(three.port)}) {
    EXPECT_GT(got, port);
    EXPECT_LE(got, range.last);
  }
  EXPECT_NE(two.port, three.port) << "a port that is bound is not free, although its socket does not listen";
}

TEST(PortRange, IsNamedWhenItIsFull) {
  const auto taken = bind_everywhere(std::nullopt);
  const PortRange range{.first = taken.port, .last = taken.port};
  const auto expect_error = [&](const auto& listen) {
    try {
      listen();
      ADD_FAILURE() << "a port that is in use was given again";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("TUTTI_PORT_RANGE=" + text_of(range)), std::string::npos)
          << error.what();
    }
  };
  expect_error([&] { listen_tcp("127.0.0.1", range); });
  expect_error([&] { bind_to_loopback(std::nullopt, range); });
  expect_error([&] { bind_everywhere(std::nullopt, range); });
}

TEST(SocketAddress, HasBracketsAroundAnIpv6Address) {
  EXPECT_EQ(format_address("::1", 80), "[::1]:80");
  EXPECT_EQ(format_address("node0", 80), "node0:80");
}

}  // namespace
}  // namespace tutti::test::port_range_test
