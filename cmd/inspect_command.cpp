#include "inspect_command.h"

#include <iostream>

#include "command_line.h"
#include "tutti/detail/flight/inspect.h"

namespace tutti {

int run_inspect_command(const std::vector<std::string>& words) {
  InspectOptions options;
  std::vector<std::string> folders;
  CLI::App app(
      "Tells from the flight records of a job, which may still run, who waits for whom and what each rank did last.");
  app.name("tutti inspect");
  app.add_option("FOLDER", folders,
                 "Folders with records, of all nodes of a job [the newest job of `tutti launch` with records]");
  app.add_option("-n,--operations", options.last_operations, "List as many operations of each rank, the last ones");
  if (!parse_command_line(app, words)) return 0;
  options.folders.assign(folders.begin(), folders.end());
  std::cout << inspect(options);
  return 0;
}

}  // namespace tutti
