#include "inspect_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "tutti/core/error.h"
#include "tutti/detail/flight/inspect.h"

namespace tutti {

int run_inspect_command(const std::vector<std::string>& words) {
  InspectOptions options;
  std::vector<std::string> folders;
  CLI::App app(
      "Tells from the flight records of a job, which may still run, who waits for whom and what each rank did last.");
  app.name("tutti inspect");
  app.add_option("FOLDER", folders, "Folders with records, of all nodes of a job [the newest job of `tutti launch`]");
  app.add_option("-n,--operations", options.last_operations, "List as many operations of each rank, the last ones");
  try {
    std::vector<std::string> arguments(words.rbegin(), words.rend());
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return 0;
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + ": see 'tutti inspect --help'");
  }
  options.folders.assign(folders.begin(), folders.end());
  std::cout << inspect(options);
  return 0;
}

}  // namespace tutti
