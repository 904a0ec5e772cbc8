#include "scale/scale_benchmark.h"

#include <sys/resource.h>

#include <chrono>
#include <iostream>

#include "command/launched.h"
#include "command/nameless_file.h"
#include "report/spread.h"
#include "scale/options.h"
#include "scale/rank.h"
#include "scale/table.h"

namespace tutti::bench {
namespace {

/// Of all processes that this one started and that have ended.
double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_CHILDREN, &used);
  constexpr double microsecond = 1e-6;
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         microsecond * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

struct Run {
  double seconds = 0;
  double cpu = 0;
  Holdings most;
};

Run run(ScaleOptions options, int ranks, bool alone) {
  options.alone = alone;
  const NamelessFile file;
  const auto begin = std::chrono::steady_clock::now();
  const double cpu_before = cpu_seconds();
  const Place place{.ranks = ranks, .nodes = options.nodes, .rate = options.rate};
  run_ranks(place, {own_program(), "scale", "--results", file.path()}, work_arguments(options));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return {.seconds = seconds.count(), .cpu = cpu_seconds() - cpu_before, .most = read_holdings(file.path())};
}

ScaleRow take_row(const ScaleOptions& options, int ranks) {
  ScaleRow row{.ranks = ranks};
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    const Run together = run(options, ranks, false);
    const Run apart = run(options, ranks, true);
    row.seconds.push_back(together.seconds);
    row.cpu.push_back(together.cpu);
    row.cpu_alone.push_back(apart.cpu);
    row.most = together.most;
    row.most_alone = apart.most;
    std::cerr << counted(ranks, "rank") << ": " << number(together.seconds, 1) << " s, " << number(together.cpu, 1)
              << " s of CPU; without meeting " << number(apart.cpu, 1) << '\n';
  }
  return row;
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
    for (const int ranks : options->ranks) rows.push_back(take_row(*options, ranks));
  } catch (const PartFailed& part) {
    return part.code;
  }
  std::cout << scale_markdown(rows, *options, machine);
  if (!options->json.empty()) write_file(options->json, scale_json(rows, *options, machine));
  return 0;
}

}  // namespace tutti::bench
