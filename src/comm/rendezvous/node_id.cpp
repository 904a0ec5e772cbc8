#include "comm/rendezvous/node_id.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "core/host_name.h"

namespace tutti::comm {
namespace {

// Changes with each start of the machine, and is no other machine's.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string namespace_id(const char* kind) {
  struct stat file {};
  if (::stat((std::string("/proc/self/ns/") + kind).c_str(), &file) != 0) return "?";
  return std::to_string(file.st_dev) + ":" + std::to_string(file.st_ino);
}

}  // namespace

std::string this_node_id() {
  return host_name() + "/" + boot_id() + "/" + namespace_id("pid") + "/" + namespace_id("net");
}

std::vector<int> number_nodes(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  std::vector<int> nodes;
  for (const auto& name : names) {
    const auto found = std::ranges::find(known, name);
    nodes.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(name);
  }
  return nodes;
}

}  // namespace tutti::comm
