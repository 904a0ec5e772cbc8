#include "local_sgd/local_sgd_benchmark.h"

#include <filesystem>

#include "command/child_process.h"
#include "command/launched.h"
#include "local_sgd/options.h"
#include "local_sgd/picture.h"
#include "local_sgd/rank.h"

namespace tutti::bench {

int run_local_sgd_benchmark(const std::vector<std::string>& words) {
  const auto environment = read_environment();
  const bool under_launcher = environment.launcher != "none";
  auto options = parse_local_sgd_options(words, under_launcher);
  if (!options) return 0;
  if (!options->from.empty()) {
    write_picture(MethodTable::read_json(options->from), options->picture);
    return 0;
  }
  if (under_launcher) return run_local_sgd_rank(*options, environment);
  options->data = std::filesystem::absolute(options->data);
  if (!options->picture.empty()) options->picture = std::filesystem::absolute(options->picture);
  if (!options->json.empty()) options->json = std::filesystem::absolute(options->json);
  const Place place{.ranks = options->ranks, .nodes = options->nodes, .rate = options->rate};
  std::vector<std::string> program{own_program(), "local-sgd"};
  const auto arguments = work_arguments(*options);
  program.insert(program.end(), arguments.begin(), arguments.end());
  const int code = run_program(launched(place, program), variables_of(place));
  return code == nodes_impossible ? 0 : code;
}

}  // namespace tutti::bench
