// The command `tutti`. It links core and launch only, so that it starts at once; what needs LibTorch lives in programs
// next to it.
#include <iostream>
#include <string>
#include <vector>

#include "choose_libtorch.h"
#include "inspect_command.h"
#include "launch_command.h"
#include "nearest_word.h"
#include "run_main.h"
#include "siblings.h"
#include "tutti/core/error.h"

namespace {

std::string help() {
  std::string text =
      "Usage: tutti COMMAND ...\n"
      "\n"
      "Data-parallel training for C++ on LibTorch.\n"
      "\n"
      "Commands:\n"
      "  launch        start a program as several ranks: tutti launch -n 4 -- ./train\n"
      "  env           show what a program finds here: launcher, ranks, LibTorch, backends\n"
      "  inspect       tell what the ranks of a job do or did: tutti inspect\n"
      "  plan          predict the time of a step on more nodes\n"
      "  report        make an HTML page from runs: tutti report runs/first runs/second\n";
  // A build without tutti::exported lacks this program.
  if (tutti::has_sibling("tutti-export-check")) {
    text += "  export-check  tell what a program of torch.export holds, and whether it can be trained\n";
  }
  // The benchmarks are built, but not installed.
  if (tutti::has_sibling("tutti-bench")) text += "  bench         run a benchmark: tutti bench NAME ...\n";
  return text +
         "  help          show this text; `tutti help COMMAND` tells more\n"
         "\n"
         "Options:\n"
         "  -h, --help    show this text\n"
         "  --version     show the version\n";
}

int run(const std::vector<std::string>& words) {
  if (words.empty()) return run({"help"});
  const auto& command = words.front();
  std::vector<std::string> rest(words.begin() + 1, words.end());
  if (command == "help" && !rest.empty()) {
    rest.emplace_back("--help");
    return run(rest);
  }
  if (command == "launch") return tutti::run_launch_command(rest);
  if (command == "inspect") return tutti::run_inspect_command(rest);
  if (command == "report") tutti::become_sibling("tutti-report", rest);
  if (command == "export-check" && !tutti::has_sibling("tutti-export-check")) {
    throw tutti::UsageError("tutti was built without export-check: build and install it with -DTUTTI_EXPORTED=ON");
  }
  if (command == "env" || command == "export-check" || command == "plan") {
    tutti::choose_libtorch();
    tutti::become_sibling("tutti-" + command, rest);
  }
  if (command == "bench") {
    if (!tutti::has_sibling("tutti-bench")) {
      throw tutti::UsageError("the benchmarks are not installed: ./dev bench in tutti's source folder runs them");
    }
    tutti::become_sibling("tutti-bench", rest);
  }
  if (command == "--version") {
    std::cout << "tutti " TUTTI_VERSION "\n";
    return 0;
  }
  if (command == "help" || command == "--help" || command == "-h") {
    std::cout << help();
    return 0;
  }
  const auto meant =
      tutti::nearest_word(command, {"launch", "env", "export-check", "inspect", "plan", "report", "bench", "help"});
  throw tutti::UsageError("there is no command '" + command + "': " + (meant ? "did you mean " + *meant + "? " : "") +
                          "see 'tutti --help'");
}

}  // namespace

int main(int argc, char** argv) {
  return tutti::run_main([&] { return run({argv + 1, argv + argc}); });
}
