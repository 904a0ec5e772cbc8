#include "comm/auth/peer_uid.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace tutti::comm {
namespace {

// How an address of IPv4 begins among those of IPv6.
const std::string ipv4_mapped_prefix = "0000000000000000FFFF0000";

using NameFunction = int (*)(int, sockaddr*, socklen_t*);

/// As /proc/net/tcp writes it: the address as a number of this machine, then the port.
std::optional<std::string> hex_endpoint(const FileDescriptor& socket, NameFunction name) {
  sockaddr_in end{};
  socklen_t length = sizeof(end);
  if (name(socket.get(), reinterpret_cast<sockaddr*>(&end), &length) != 0 || end.sin_family != AF_INET) {
    return std::nullopt;
  }
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%08X:%04X", end.sin_addr.s_addr, ntohs(end.sin_port));
  return text.data();
}

/// Whose the connection with these ends is; nullopt where it is not in that table.
std::optional<uid_t> owner_uid(const std::string& local, const std::string& remote, const char* table) {
  std::ifstream connections(table);
  for (std::string line; std::getline(connections, line);) {
    std::istringstream stream(line);
    std::array<std::string, 7> words;  // number, local, remote, state, queues, timer, resent
    for (auto& word : words) stream >> word;
    if (words[1] != local || words[2] != remote) continue;
    uid_t uid = 0;
    return stream >> uid ? std::optional(uid) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

bool peer_has_same_uid(const FileDescriptor& socket) {
  const auto local_end = hex_endpoint(socket, &::getsockname);
  const auto remote_end = hex_endpoint(socket, &::getpeername);
  if (!local_end || !remote_end) return false;
  const auto uid = owner_uid(*remote_end, *local_end, "/proc/self/net/tcp");
  // The other process may have made a socket of IPv6 and connected it to an address of IPv4.
  return (uid ? uid
              : owner_uid(ipv4_mapped_prefix + *remote_end, ipv4_mapped_prefix + *local_end, "/proc/self/net/tcp6")) ==
         ::geteuid();
}

}  // namespace tutti::comm
