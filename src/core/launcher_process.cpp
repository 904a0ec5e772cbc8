#include "core/launcher_process.h"

#include <sys/types.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string_view>

namespace tutti {
namespace {

std::string content_of(pid_t process, const char* file) {
  std::ifstream stream("/proc/" + std::to_string(process) + "/" + file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

bool has_variable(pid_t process, const std::string& variable) {
  // Each entry ends with a zero byte, so every entry except the first follows one.
  const std::string entries = '\0' + content_of(process, "environ");
  return entries.find('\0' + variable + '=') != std::string::npos;
}

/// 0 if it is unknown.
pid_t parent_of(pid_t process) {
  constexpr std::string_view label = "\nPPid:";
  const std::string status = content_of(process, "status");
  const auto found = status.find(label);
  return found == std::string::npos ? 0 : static_cast<pid_t>(std::stol(status.substr(found + label.size())));
}

}  // namespace

std::string launcher_process(const std::string& variable) {
  pid_t process = ::getppid();
  while (process > 1 && has_variable(process, variable)) process = parent_of(process);
  return std::to_string(process);
}

}  // namespace tutti
