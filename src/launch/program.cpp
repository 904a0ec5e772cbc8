#include "launch/program.h"

#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>

#include "tutti/core/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

bool is_executable(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

std::optional<fs::path> find_in_path(const std::string& name) {
  const char* variable = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe)
  std::string_view rest = variable == nullptr ? "/usr/local/bin:/usr/bin:/bin" : variable;
  while (true) {
    const auto colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    const fs::path candidate = fs::path(folder.empty() ? "." : folder) / name;
    if (is_executable(candidate)) return candidate;
    if (colon == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(colon + 1);
  }
}

/// The folder of the running executable.
fs::path own_folder() {
  return fs::read_symlink("/proc/self/exe").parent_path();
}

}  // namespace

fs::path find_program(const std::string& name) {
  if (name.empty()) throw UsageError("the program's name is empty: give one after --");
  if (name.find('/') != std::string::npos) {
    if (is_executable(name)) return name;
    std::error_code ignored;
    const bool exists = fs::exists(name, ignored);
    throw UsageError(exists ? name + " is not an executable file: check its permissions (chmod +x)"
                            : "there is no program " + name + ": check the path");
  }
  if (auto found = find_in_path(name)) return *found;
  if (auto sibling = own_folder() / name; is_executable(sibling)) return sibling;
  const std::string hint = is_executable(name) ? ": did you mean ./" + name + "?" : ": give its path";
  throw UsageError("there is no program '" + name + "' in PATH or next to tutti" + hint);
}

fs::path find_rank_guard() {
  auto sibling = own_folder() / "tutti-rank";
  if (is_executable(sibling)) return sibling;
  if (auto found = find_in_path("tutti-rank")) return *found;
  throw UsageError("tutti-rank is neither next to " + fs::read_symlink("/proc/self/exe").string() +
                   " nor in PATH: install it with tutti, or add its folder to PATH");
}

}  // namespace tutti
