// The command `tutti`. It links core and launch only, so that it starts at once; what needs LibTorch lives in programs
// next to it.
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "launch_command.h"
#include "nearest_word.h"
#include "tutti/core/error.h"

namespace {

constexpr int usage_exit_code = 2;

constexpr const char* help =
    "Usage: tutti COMMAND ...\n"
    "\n"
    "Data-parallel training for C++ on LibTorch.\n"
    "\n"
    "Commands:\n"
    "  launch    start a program as several ranks: tutti launch -n 4 -- ./train\n"
    "  env       show what a program finds here: launcher, ranks, LibTorch, engines\n"
    "  report    make an HTML page from runs: tutti report runs/first runs/second\n"
    "  bench     run a benchmark: tutti bench NAME ...\n"
    "  help      show this text; `tutti COMMAND --help` tells more\n"
    "\n"
    "Options:\n"
    "  -h, --help    show this text\n"
    "  --version     show the version\n";

/// Replaces this process by the program `name` that is installed next to it.
[[noreturn]] void become_sibling(const std::string& name, std::vector<std::string> words) {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  words.insert(words.begin(), path.string());
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(path.c_str(), arguments.data());
  throw tutti::UsageError("cannot run " + path.string() + " (" + std::generic_category().message(errno) +
                          "): build or install it");
}

int run(const std::vector<std::string>& words) {
  if (words.empty()) throw tutti::UsageError("no command: see 'tutti --help'");
  const auto& command = words.front();
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (command == "launch") return tutti::run_launch_command(rest);
  if (command == "report") become_sibling("tutti-report", rest);
  if (command == "env") become_sibling("tutti-env", rest);
  if (command == "bench") become_sibling("tutti-bench", rest);
  if (command == "--version") {
    std::cout << "tutti " TUTTI_VERSION "\n";
    return 0;
  }
  if (command == "help" || command == "--help" || command == "-h") {
    std::cout << help;
    return 0;
  }
  const auto meant = tutti::nearest_word(command, {"launch", "env", "report", "bench", "help"});
  throw tutti::UsageError("there is no command '" + command + "': " + (meant ? "did you mean " + *meant + "? " : "") +
                          "see 'tutti --help'");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const tutti::UsageError& error) {
    std::cerr << "tutti: " << error.what() << '\n';
    return usage_exit_code;
  } catch (const std::exception& error) {
    std::cerr << "tutti: " << error.what() << '\n';
    return 1;
  }
}
