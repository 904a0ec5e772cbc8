#include "step/step_benchmark.h"

#include <ATen/Parallel.h>

#include <iostream>

#include "report/spread.h"
#include "step/comparison.h"
#include "step/table.h"
#include "tutti/core/environment.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

/// Measures both sides. They alternate in going first, so that a change of the machine's speed affects both.
Figure take(const Comparison& comparison, int repeats) {
  Figure figure{.name = comparison.name, .unit = comparison.unit};
  const auto take_libtorch = [&] {
    if (comparison.libtorch) figure.libtorch.push_back(comparison.libtorch());
  };
  for (int repeat = 0; repeat < repeats; ++repeat) {
    if (repeat % 2 == 0) take_libtorch();
    figure.tutti.push_back(comparison.tutti());
    if (repeat % 2 == 1) take_libtorch();
    std::cerr << repeat + 1 << '/' << repeats << ' ' << comparison.name << '\n';
  }
  return figure;
}

/// Measures all parts and returns the wrong results.
std::vector<std::string> take_all(const std::vector<ComparisonMaker>& makers, int repeats,
                                  std::vector<Figure>& figures) {
  std::vector<std::string> faults;
  for (const auto& make : makers) {
    const Comparison comparison = make();
    figures.push_back(take(comparison, repeats));
    const auto fault = comparison.check ? comparison.check() : std::string();
    if (!fault.empty()) faults.push_back(comparison.name + ": " + fault);
  }
  return faults;
}

}  // namespace

int run_step_benchmark(const std::vector<std::string>& words) {
  const auto options = parse_step_options(words);
  if (!options) return 0;
  if (read_environment().launcher != "none") {
    throw UsageError("bench step is for one process: run it without a launcher");
  }
  at::set_num_threads(1);
  const auto machine = describe_machine();
  const Workload workload(workload_of(*options), 0, 1);

  std::vector<Figure> figures;
  auto faults = take_all(loop_comparisons(workload), options->repeats, figures);
  const auto more = take_all(part_comparisons(workload, options->calls), options->repeats, figures);
  faults.insert(faults.end(), more.begin(), more.end());

  std::cout << step_markdown(figures, *options, machine) << std::flush;
  if (!options->json.empty()) write_file(options->json, step_json(figures, *options, machine));
  for (const auto& fault : faults) std::cerr << "tutti bench: wrong result: " << fault << '\n';
  return faults.empty() ? 0 : 1;
}

}  // namespace tutti::bench
