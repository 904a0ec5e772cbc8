#include "all_reduce/all_reduce_benchmark.h"

#include "all_reduce/mpi.h"
#include "all_reduce/options.h"
#include "all_reduce/rank.h"
#include "all_reduce/table.h"
#include "command/anonymous_file.h"
#include "command/launched.h"
#include "tutti/core/environment.h"

namespace tutti::bench {
namespace {

AllReduceResults take_ranks(const AllReduceOptions& options, int ranks) {
  const AnonymousFile file;
  run_ranks({.ranks = ranks}, {own_program(), "all-reduce", "--results", file.path()}, work_arguments(options));
  return read_all_reduce_results(file.path());
}

AllReduceResults take_all(const AllReduceOptions& options) {
  AllReduceResults results;
  for (const int ranks : options.ranks) {
    // MPI runs before and after the other systems, so that a change of the machine's speed shows in their spread.
    const int after = options.repeats / 2;
    if (options.mpi) merge(results, take_mpi(options, ranks, options.repeats - after));
    merge(results, take_ranks(options, ranks));
    if (options.mpi && after > 0) merge(results, take_mpi(options, ranks, after));
  }
  return results;
}

}  // namespace

int run_all_reduce_benchmark(const std::vector<std::string>& words) {
  const auto environment = read_environment();
  const bool under_launcher = environment.launcher != "none";
  const auto options = parse_all_reduce_options(words, under_launcher);
  if (!options) return 0;
  if (under_launcher) return run_all_reduce_rank(*options, environment);
  try {
    return report(take_all(*options), *options);
  } catch (const PartFailed& part) {
    return part.code;
  }
}

}  // namespace tutti::bench
