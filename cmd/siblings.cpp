#include "siblings.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "tutti/core/error.h"

namespace tutti {
namespace {

std::filesystem::path sibling(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

}  // namespace

bool has_sibling(const std::string& name) {
  return ::access(sibling(name).c_str(), X_OK) == 0;
}

void become_sibling(const std::string& name, std::vector<std::string> words) {
  const auto path = sibling(name);
  words.insert(words.begin(), path.string());
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(path.c_str(), arguments.data());
  throw UsageError("cannot run " + path.string() + " (" + std::generic_category().message(errno) +
                   "): build or install it");
}

}  // namespace tutti
