// `tutti export-check`: what a program of torch.export holds, and whether it can be trained. A program of its own,
// because it asks LibTorch for operators.
#include <dlfcn.h>

#include <iostream>
#include <string>

#include "exported/describe.h"
#include "run_main.h"
#include "tutti/core/error.h"

namespace {

constexpr const char* help =
    "Usage: tutti export-check [--library LIB.so]... [--model NAME] FILE.pt2\n"
    "\n"
    "Shows what a program of torch.export holds: schema, parameters, buffers, inputs, outputs, symbolic sizes, "
    "operators;\n"
    "and says what keeps it from being trained with tutti::ExportedModule.\n"
    "\n"
    "Options:\n"
    "  --library LIB.so    load a library that defines operators; may be given several times\n"
    "  --model NAME        which of several models in the file\n"
    "\n"
    "Exit code: 0 where it can be trained, 1 where it cannot or the file is damaged, 2 for a wrong call.\n";

struct Options {
  std::string file{};
  std::string model{};
};

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--library" || word == "--model") {
      if (++i == argc) throw tutti::UsageError(word + " needs a value");
      if (word == "--model") options.model = argv[i];
      if (word == "--library" && ::dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL) == nullptr) {
        throw tutti::UsageError("cannot load the library: " + std::string(::dlerror()));
      }
    } else if (word.starts_with("-") || !options.file.empty()) {
      throw tutti::UsageError("export-check takes no " + word + ": see 'tutti export-check --help'");
    } else {
      options.file = word;
    }
  }
  if (options.file.empty()) throw tutti::UsageError("export-check needs a file: see 'tutti export-check --help'");
  return options;
}

int check(const Options& options) {
  const auto described = tutti::exported::describe(tutti::exported::load_program(options.file, options.model));
  std::cout << described.text;
  for (const std::string& note : described.notes) std::cout << "note: " << note << '\n';
  for (const std::string& problem : described.problems) std::cout << "problem: " << problem << '\n';
  std::cout << (described.problems.empty() ? "It can be trained.\n" : "It cannot be trained as it is.\n");
  return described.problems.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "";
  if (option == "--help" || option == "-h") {
    std::cout << help;
    return 0;
  }
  return tutti::run_main([&] { return check(read_options(argc, argv)); });
}
