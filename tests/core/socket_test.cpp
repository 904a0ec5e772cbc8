// Ranks: none. Options of sockets.
#include "core/socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <map>

namespace tutti::test::socket_test {
namespace {

int option_of(const FileDescriptor& socket, int level, int option) {
  int value = -1;
  socklen_t length = sizeof(value);
  EXPECT_EQ(::getsockopt(socket.get(), level, option, &value, &length), 0);
  return value;
}

// The kernel refuses longer intervals.
TEST(Keepalive, ItsTimeIsThatOfFourIntervals) {
  const auto listening = listen_tcp(loopback_host);
  const auto socket = connect_nonblocking(listening.address);
  for (const auto& [timeout, interval] : std::map<int, int>{{1, 1}, {20, 5}, {1'000'000, 32767}}) {
    set_keepalive(socket, std::chrono::seconds(timeout));
    EXPECT_EQ(option_of(socket, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option_of(socket, IPPROTO_TCP, TCP_KEEPIDLE), interval);
    EXPECT_EQ(option_of(socket, IPPROTO_TCP, TCP_KEEPINTVL), interval);
    EXPECT_EQ(option_of(socket, IPPROTO_TCP, TCP_KEEPCNT), 3);
  }
}

}  // namespace
}  // namespace tutti::test::socket_test
