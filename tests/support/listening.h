#pragma once
// The addresses at which this process listens, read from /proc.
#include <arpa/inet.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace tutti::test {

/// Converts "0100007F:1F90" and similar texts of /proc/net/tcp to an address. Each group of 8 digits is a number in the
/// machine's byte order.
inline std::string address_in_proc(const std::string& digits) {
  const auto hex = digits.substr(0, digits.find(':'));
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i * 8 < hex.size(); ++i) {
    words.at(i) = static_cast<std::uint32_t>(std::stoul(hex.substr(i * 8, 8), nullptr, 16));
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  return ::inet_ntop(hex.size() > 8 ? AF_INET6 : AF_INET, words.data(), text.data(), text.size());
}

struct TcpListener {
  std::string address;
  int port = 0;
};

/// The TCP sockets on which this process listens.
inline std::vector<TcpListener> tcp_listeners() {
  std::set<std::string> socket_inodes;  // inodes of this process's sockets
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat about {};
    if (::stat(entry.path().c_str(), &about) == 0 && S_ISSOCK(about.st_mode))
      socket_inodes.insert(std::to_string(about.st_ino));
  }
  constexpr const char* listens = "0A";
  std::vector<TcpListener> places;
  for (const std::string table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream stream(line);
      std::vector<std::string> words;
      for (std::string word; stream >> word;) words.push_back(word);
      constexpr std::size_t inode = 9;
      if (words.size() > inode && words[3] == listens && socket_inodes.contains(words[inode])) {
        const auto port = words[1].substr(words[1].find(':') + 1);
        places.push_back({.address = address_in_proc(words[1]), .port = std::stoi(port, nullptr, 16)});
      }
    }
  }
  return places;
}

inline std::vector<std::string> listening_addresses() {
  std::vector<std::string> addresses;
  for (const auto& place : tcp_listeners()) addresses.push_back(place.address);
  return addresses;
}

}  // namespace tutti::test
