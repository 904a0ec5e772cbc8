// `tutti export-check`: what a program of torch.export holds, and whether it can be trained. A program of its own,
// because it asks LibTorch for operators.
#include <dlfcn.h>

#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "exported/describe.h"
#include "run_main.h"
#include "tutti/core/error.h"

namespace {

struct Options {
  std::string file{};
  std::string model{};
  std::vector<std::string> libraries{};
};

/// Returns nullopt after --help. Throws UsageError.
std::optional<Options> read_options(const std::vector<std::string>& words) {
  Options options;
  CLI::App app(
      "Shows what a program of torch.export holds: schema, parameters, buffers, inputs, outputs, symbolic sizes, "
      "operators; and says what keeps it from being trained with tutti::ExportedModule.");
  app.name("tutti export-check");
  app.footer("Exit code: 0 where it can be trained, 1 where it cannot or the file is damaged, 2 for a wrong call.");
  app.add_option("FILE", options.file, "The .pt2 file")->required();
  app.add_option("--library", options.libraries, "A library that defines operators, to be loaded; again for more")
      ->allow_extra_args(false);
  app.add_option("--model", options.model, "Which of several models in the file");
  if (!tutti::parse_command_line(app, words)) return std::nullopt;
  return options;
}

int check(const Options& options) {
  for (const std::string& library : options.libraries) {
    if (::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      throw tutti::UsageError("cannot load the library: " + std::string(::dlerror()));
    }
  }
  const auto described = tutti::exported::describe(tutti::exported::load_program(options.file, options.model));
  std::cout << described.text;
  for (const std::string& note : described.notes) std::cout << "note: " << note << '\n';
  for (const std::string& problem : described.problems) std::cout << "problem: " << problem << '\n';
  std::cout << (described.problems.empty() ? "It can be trained.\n" : "It cannot be trained as it is.\n");
  return described.problems.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return tutti::run_main([&] {
    const auto options = read_options({argv + 1, argv + argc});
    return options ? check(*options) : 0;
  });
}
