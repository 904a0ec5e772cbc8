#include "comm/rendezvous/local_port_discovery.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "comm/backend/describe.h"
#include "core/file_descriptor.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto query_interval = std::chrono::milliseconds(20);
// For a client that connects and sends nothing.
constexpr timeval client_timeout{.tv_sec = 1, .tv_usec = 0};

[[noreturn]] void throw_system_error(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

FileDescriptor unix_socket() {
  FileDescriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (made.get() < 0) throw_system_error("cannot make a Unix socket");
  return made;
}

struct Address {
  sockaddr_un storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// Begins with a zero byte: the name is no file.
Address address_of(const std::string& job) {
  constexpr std::size_t longest = 70;
  std::string name = "tutti/";
  name += std::to_string(::getuid());
  name += "/";
  name += job.substr(0, longest);
  if (job.size() > longest) name += std::to_string(crc32c(std::as_bytes(std::span(job))));
  Address address;
  address.storage.sun_family = AF_UNIX;
  std::memcpy(address.storage.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::getuid();
}

template <typename T>
bool receive(int socket, T& value) {
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &client_timeout, sizeof(client_timeout));
  return ::recv(socket, &value, sizeof(value), MSG_WAITALL) == static_cast<ssize_t>(sizeof(value));
}

template <typename T>
bool send(int socket, const T& value) {
  return ::send(socket, &value, sizeof(value), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(value));
}

}  // namespace

LoopbackSocket listen_on_loopback() {
  FileDescriptor made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in storage{};
  storage.sin_family = AF_INET;
  storage.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  // Connections inherit this: ended ones do not keep the port from a later connect. Only after bind(), or two jobs
  // might choose the same port.
  const int on = 1;
  const auto allow_reuse = [&] { return ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0; };
  if (made.get() < 0 || ::bind(made.get(), address, length) != 0 || !allow_reuse() ||
      ::listen(made.get(), SOMAXCONN) != 0 || ::getsockname(made.get(), address, &length) != 0) {
    throw_system_error("cannot listen on the loopback interface");
  }
  return {.descriptor = made.release(), .port = ntohs(storage.sin_port)};
}

class PortServer::Server {
 public:
  Server(const std::string& job, std::uint16_t port, int size)
      : listening_(unix_socket()),
        stop_(::eventfd(0, EFD_CLOEXEC)),
        port_(port),
        answered_(static_cast<std::size_t>(size)) {
    if (stop_.get() < 0) throw_system_error("eventfd");
    const auto address = address_of(job);
    if (::bind(listening_.get(), address.get(), address.length) != 0 || ::listen(listening_.get(), SOMAXCONN) != 0) {
      if (errno != EADDRINUSE) throw_system_error("cannot listen for the ranks of this node");
      throw UsageError("another rank 0 of job " + job +
                       " is waiting for its ranks on this node: start programs of one job one after the other, or "
                       "set MASTER_ADDR and MASTER_PORT for each");
    }
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() {
    const std::uint64_t one = 1;
    while (::write(stop_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  void serve() {
    std::array<pollfd, 2> events{{{listening_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
    while (::poll(events.data(), events.size(), -1) >= 0 || errno == EINTR) {
      if (events[1].revents != 0) return;
      if (events[0].revents == 0) continue;
      const FileDescriptor client(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (client.get() >= 0 && is_same_user(client.get())) reply_to(client.get());
    }
  }

  // A rank that has been told asks again for its next connect: rank 0 is not there yet, so it gets no answer here.
  void reply_to(int client) {
    std::int32_t rank = -1;
    if (!receive(client, rank) || rank < 0 || rank >= static_cast<std::int32_t>(answered_.size())) return;
    const auto index = static_cast<std::size_t>(rank);
    if (!answered_[index]) answered_[index] = send(client, port_);
  }

  FileDescriptor listening_;
  FileDescriptor stop_;
  std::uint16_t port_;
  std::vector<bool> answered_;
  std::thread thread_;
};

PortServer::PortServer(const std::string& job, std::uint16_t port, int size)
    : server_(std::make_unique<Server>(job, port, size)) {}
PortServer::~PortServer() = default;

std::uint16_t query_port(const std::string& job, int rank, std::chrono::milliseconds timeout) {
  const auto begin = Clock::now();
  const auto deadline = begin + timeout;
  bool is_logged = false;
  const auto address = address_of(job);
  for (;;) {
    const FileDescriptor client = unix_socket();
    std::uint16_t port = 0;
    if (::connect(client.get(), address.get(), address.length) == 0) {
      if (!is_same_user(client.get())) {
        throw UsageError("a process of another user answers for rank 0 of job " + job +
                         ": set MASTER_ADDR and MASTER_PORT instead");
      }
      if (send(client.get(), static_cast<std::int32_t>(rank)) && receive(client.get(), port)) return port;
    }
    if (Clock::now() + query_interval > deadline) {
      throw TimeoutError("rank " + std::to_string(rank) + " did not receive the store's port from rank 0 within " +
                             describe_duration(timeout) + ". Check that rank 0 of job " + job +
                             " runs on this node and in the same container, or set MASTER_ADDR and MASTER_PORT.",
                         {0});
    }
    if (!is_logged && Clock::now() > begin + absence_log_delay) {
      is_logged = true;
      Logger(rank).warning("this rank has waited for " + describe_duration(absence_log_delay) +
                           " for rank 0, which has not joined. It fails after " + describe_duration(timeout) +
                           " (connect_timeout).");
    }
    std::this_thread::sleep_for(query_interval);
  }
}

}  // namespace tutti::comm
