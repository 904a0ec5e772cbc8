#include "scale/scale_benchmark.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>
#include <vector>

#include "command/anonymous_file.h"
#include "command/launched.h"
#include "report/spread.h"
#include "scale/cpu_time.h"
#include "scale/options.h"
#include "scale/rank.h"
#include "scale/table.h"

namespace tutti::bench {
namespace {

/// CPU seconds of all child processes that have exited.
struct CpuTime {
  double user = 0;
  double kernel = 0;
};

CpuTime cpu_of_children() {
  rusage used{};
  ::getrusage(RUSAGE_CHILDREN, &used);
  return {.user = seconds_of(used.ru_utime), .kernel = seconds_of(used.ru_stime)};
}

void take_figures(ScaleOptions options, ScaleRow& row) {
  options.alone = row.alone;
  const AnonymousFile file;
  const auto begin = std::chrono::steady_clock::now();
  const CpuTime before = cpu_of_children();
  const int processes = options.forked ? options.nodes : row.ranks;  // the number that the launcher starts
  const Place place{.ranks = processes, .nodes = options.nodes, .rate = options.rate};
  std::vector<std::string> program{own_program(), "scale", "--results", file.path()};
  if (options.forked) program.insert(program.end(), {"--forks", std::to_string(row.ranks / options.nodes)});
  run_ranks(place, program, work_arguments(options));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const CpuTime after = cpu_of_children();
  const double kernel = after.kernel - before.kernel;
  row.seconds.push_back(seconds.count());
  row.cpu.push_back(after.user - before.user + kernel);
  row.cpu_in_kernel.push_back(kernel);
  row.most = read_usage(file.path(), row.ranks);
  row.cpu_in_main.push_back(row.most.cpu);
  std::cerr << counted(row.ranks, "rank") << (row.alone ? ", not connected: " : ": ") << number(seconds.count(), 1)
            << " s, " << number(row.cpu.back(), 1) << " s of CPU, " << number(row.most.cpu, 1) << " in main()\n";
}

/// Measures connected and unconnected ranks in alternation.
std::vector<ScaleRow> take_rows(const ScaleOptions& options, int ranks) {
  std::vector<ScaleRow> rows{{.ranks = ranks}, {.ranks = ranks, .alone = true}};
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (ScaleRow& row : rows) take_figures(options, row);
  }
  return rows;
}

}  // namespace

int run_scale_benchmark(const std::vector<std::string>& words) {
  const auto environment = read_environment();
  const bool under_launcher = environment.launcher != "none";
  const auto options = parse_scale_options(words, under_launcher);
  if (!options) return 0;
  if (under_launcher) return run_scale_rank(*options, environment);
  const Machine machine = describe_machine();
  std::vector<ScaleRow> rows;
  try {
    for (const int ranks : options->ranks) std::ranges::move(take_rows(*options, ranks), std::back_inserter(rows));
  } catch (const PartFailed& part) {
    return part.code;
  }
  std::cout << scale_markdown(rows, *options, machine);
  if (!options->json.empty()) write_file(options->json, scale_json(rows, *options, machine));
  return 0;
}

}  // namespace tutti::bench
