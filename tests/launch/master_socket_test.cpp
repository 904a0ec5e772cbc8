#include "launch/master_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tutti/core/error.h"

namespace tutti::master_socket_test {
namespace {

bool accepts_connections(std::uint16_t port) {
  const FileDescriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(port);
  return ::connect(client.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0;
}

TEST(MasterSocket, ListensOnAFreePort) {
  const auto local = listen_for_ranks("127.0.0.1", std::nullopt);
  const auto everywhere = listen_for_ranks("node0", std::nullopt);
  EXPECT_NE(local.port, everywhere.port);
  EXPECT_TRUE(accepts_connections(local.port));
  EXPECT_TRUE(accepts_connections(everywhere.port));
}

TEST(MasterSocket, BindsAPortAgainAfterItIsFreed) {
  auto first = listen_for_ranks("127.0.0.1", std::nullopt);
  first.fd.reset();
  EXPECT_EQ(listen_for_ranks("127.0.0.1", first.port).port, first.port);
}

TEST(ReservedPort, CanBeListenedOnButIsNotReused) {
  const auto reserved = reserve_port(std::nullopt);
  EXPECT_FALSE(accepts_connections(reserved.port));
  for (int i = 0; i < 20; ++i) EXPECT_NE(listen_for_ranks("node0", std::nullopt).port, reserved.port);
  for (const std::string address : {"127.0.0.1", "node0"}) {
    const auto program = listen_for_ranks(address, reserved.port);
    EXPECT_TRUE(accepts_connections(reserved.port));
    EXPECT_THROW(reserve_port(reserved.port), UsageError);
  }
}

TEST(MasterSocket, NamesAPortInUse) {
  for (const std::string address : {"127.0.0.1", "node0"}) {
    const auto taken = listen_for_ranks(address, std::nullopt);
    try {
      listen_for_ranks(address, taken.port);
      FAIL() << "two sockets on one port";
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()),
                "port " + std::to_string(taken.port) + " is in use: choose another --master-port");
    }
  }
}

}  // namespace
}  // namespace tutti::master_socket_test
