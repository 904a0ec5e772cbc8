// Ranks: none. The addresses to which a port is bound, read from the system.
#include "core/bound_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <string>

namespace tutti::test::bound_socket_test {
namespace {

std::string address_of(const BoundSocket& socket) {
  sockaddr_storage where{};
  socklen_t length = sizeof(where);
  EXPECT_EQ(::getsockname(socket.fd.get(), reinterpret_cast<sockaddr*>(&where), &length), 0);
  const void* const address = where.ss_family == AF_INET6
                                  ? static_cast<const void*>(&reinterpret_cast<sockaddr_in6&>(where).sin6_addr)
                                  : &reinterpret_cast<sockaddr_in&>(where).sin_addr;
  std::array<char, INET6_ADDRSTRLEN> text{};
  return ::inet_ntop(where.ss_family, address, text.data(), text.size());
}

bool is_everywhere(const BoundSocket& socket) {
  return address_of(socket) == "::" || address_of(socket) == "0.0.0.0";
}

TEST(BoundSocket, IsBoundToTheHostsAddress) {
  EXPECT_EQ(address_of(bind_to_loopback(std::nullopt)), "127.0.0.1");
  EXPECT_EQ(address_of(bind_to_host("127.0.0.1", std::nullopt)), "127.0.0.1");
  EXPECT_EQ(address_of(bind_to_host("127.1.2.3", std::nullopt)), "127.1.2.3");
  EXPECT_TRUE(is_everywhere(bind_everywhere(std::nullopt)));
}

// Other machines could not reach a socket on one address.
TEST(BoundSocket, IsBoundToAllAddressesIfTheHostIsNotThisMachine) {
  EXPECT_TRUE(is_everywhere(bind_to_host("192.0.2.1", std::nullopt)));  // for documents only: RFC 5737
  EXPECT_TRUE(is_everywhere(bind_to_host("no such host", std::nullopt)));
  EXPECT_TRUE(is_everywhere(bind_to_host("localhost", std::nullopt)));
}

// Ranks that resolve the host to IPv6 would reach the other program.
TEST(BoundSocket, IsNotBoundToIpv4AloneIfAnotherProgramHasThePortOfIpv6) {
  const FileDescriptor listener(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (!listener.is_open() || ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) != 0 ||
      ::bind(listener.get(), any, length) != 0 || ::listen(listener.get(), 1) != 0) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  ASSERT_EQ(::getsockname(listener.get(), any, &length), 0);
  EXPECT_THROW(bind_everywhere(ntohs(address.sin6_port)), std::system_error);
}

TEST(BoundSocket, UsesTheGivenPort) {
  auto first = bind_to_loopback(std::nullopt);
  start_listening(first);
  EXPECT_THROW(bind_to_host("127.0.0.1", first.port), std::system_error);
  const auto port = first.port;
  first.fd.reset();
  EXPECT_EQ(bind_to_host("127.0.0.1", port).port, port);
}

}  // namespace
}  // namespace tutti::test::bound_socket_test
