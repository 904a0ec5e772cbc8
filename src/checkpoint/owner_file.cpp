#include "checkpoint/owner_file.h"

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/file.h"
#include "checkpoint/state_json.h"
#include "comm/os/process.h"
#include "core/host_name.h"
#include "tutti/core/error.h"

namespace tutti::checkpoint {
namespace {

using nlohmann::json;

// Differs between machines, and between boots of one machine. The inode of the first PID namespace does not.
std::string boot() {
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  return text;
}

json parsed(const std::string& text) {
  try {
    json owner = parse_json(text);
    if (owner.is_object()) return owner;
  } catch (const CheckpointError&) {
    // Not a file of tutti.
  }
  return json::object();
}

}  // namespace

std::string owner_text() {
  const comm::ProcessIdentity& process = comm::this_process();
  return json{{"host", host_name()},
              {"boot", boot()},
              {"pid", process.pid},
              {"namespace_device", process.namespace_device},
              {"namespace_inode", process.namespace_inode},
              {"start_time", process.start_time},
              {"time_namespace", process.time_namespace}}
      .dump(1, ' ', false, json::error_handler_t::replace);
}

std::string owner_text_in(const std::filesystem::path& path) {
  constexpr std::uint64_t max_owner_size = 1 << 16;  // an owner file has a few hundred bytes
  try {
    return read_text(path, max_owner_size).text;
  } catch (const CheckpointError&) {
    return {};  // removed meanwhile, or of another user
  }
}

bool owner_has_exited(const std::string& text) {
  const json owner = parsed(text);
  const auto number = [&owner](const char* name) {
    const auto found = owner.find(name);
    return found != owner.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
  };
  const std::string here = boot();
  const auto there = owner.find("boot");
  if (here.empty() || there == owner.end() || *there != here || number("pid") == 0) return false;
  comm::ProcessIdentity process;
  process.pid = static_cast<pid_t>(number("pid"));
  process.namespace_device = number("namespace_device");
  process.namespace_inode = number("namespace_inode");
  process.start_time = number("start_time");
  process.time_namespace = number("time_namespace");
  if (!comm::this_process().shares_pid_namespace_with(process)) return false;
  return comm::ProcessProbe(process).has_exited();
}

std::string owner_name(const std::string& text) {
  const json owner = parsed(text);
  if (!owner.contains("pid") || !owner["pid"].is_number() || !owner.contains("host") || !owner["host"].is_string()) {
    return "another process";
  }
  return "process " + owner["pid"].dump() + " on " + owner["host"].get<std::string>();
}

}  // namespace tutti::checkpoint
