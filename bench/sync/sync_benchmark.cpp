#include "sync/sync_benchmark.h"

#include "sync/options.h"
#include "sync/orchestrate.h"
#include "sync/rank.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

int run_sync_benchmark(const std::vector<std::string>& words) {
  const auto environment = read_environment();
  const bool under_launcher = environment.launcher != "none";
  const auto options = parse_sync_options(words, under_launcher);
  if (!options) return 0;
  return under_launcher ? run_rank(*options, environment) : orchestrate(*options);
}

}  // namespace tutti::bench
