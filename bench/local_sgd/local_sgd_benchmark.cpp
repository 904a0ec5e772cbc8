#include "local_sgd/local_sgd_benchmark.h"

#include <filesystem>

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
  try {
    run_ranks(place, {own_program(), "local-sgd"}, work_arguments(*options));
  } catch (const PartFailed& part) {
    return part.code == nodes_impossible ? 0 : part.code;
  }
  return 0;
}

}  // namespace tutti::bench
