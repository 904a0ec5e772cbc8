// A forked child that outlasts the end of its parent's connections does not keep them open.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "core/socket.h"
#include "support/socket_bytes.h"

namespace tutti::unshared_descriptor_test {
namespace {

FileDescriptor accept_from(const ListeningSocket& listening) {
  pollfd ready{.fd = listening.socket.get(), .events = POLLIN, .revents = 0};
  ::poll(&ready, 1, 30'000);
  return *try_accept(listening.socket);
}

bool is_closed_by_peer(const FileDescriptor& socket) {
  pollfd ready{.fd = socket.get(), .events = POLLIN, .revents = 0};
  std::array<std::byte, 1> byte{};
  return ::poll(&ready, 1, 10'000) == 1 && !tutti::test::try_read(socket, byte);
}

TEST(UnsharedDescriptor, AForkedChildDoesNotKeepConnectionsOpen) {
  auto listening = listen_tcp("127.0.0.1");
  auto client = connect_nonblocking(listening.address);
  auto server = accept_from(listening);
  auto second_client = connect_nonblocking(listening.address);
  auto second_server = accept_from(listening);
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  client.reset();
  EXPECT_TRUE(is_closed_by_peer(server)) << "the side that connected";
  second_server.reset();
  EXPECT_TRUE(is_closed_by_peer(second_client)) << "the side that accepted";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

// The child's own files may have the numbers of those that were closed in it.
TEST(UnsharedDescriptor, AForkedChildClosesNoOtherFile) {
  auto listening = listen_tcp("127.0.0.1");
  const pid_t child = ::fork();
  if (child == 0) {
    const int reused = ::dup(STDERR_FILENO);
    if (reused != listening.socket.get()) ::_exit(2);
    listening.socket.reset();
    ::_exit(::fcntl(reused, F_GETFD) < 0 ? 1 : 0);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tutti::unshared_descriptor_test
