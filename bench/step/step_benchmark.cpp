#include <ATen/Parallel.h>

#include <iostream>

#include "benchmarks.h"
#include "report/report.h"
#include "report/statistics.h"
#include "step/comparison.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

constexpr const char* libtorch = "LibTorch";
constexpr const char* ratio = "tutti / LibTorch";

/// The model and batches of `tutti bench sync`, in one process.
struct StepOptions : SyncOptions {
  int calls = 5;  ///< calls of a part that is timed alone, in one repeat
};

StepOptions parse_step_options(const Invocation& invocation) {
  StepOptions options;
  options.batches = 10;
  options.steps = 1;
  options.repeats = 5;
  ArgumentParser parser(
      "step", "One process: compares tutti's training loop with the plain LibTorch loop, as a whole and in parts.",
      options);
  add_work_options(parser, options);
  parser.add_count("--calls", options.calls, "Calls of a part that is timed alone, in one repeat");
  parser.parse_words(invocation);
  check_gpt_width(options.width);
  return options;
}

/// Measures both sides. They alternate in going first, so that a change of the machine's speed affects both.
void take(const Comparison& comparison, int repeats, Results& results) {
  const auto add = [&](const char* system, const std::string& unit, double value) {
    results.row({{"figure", comparison.name}, {"system", system}, {"unit", unit}}).values.push_back(value);
    return value;
  };
  const auto take_libtorch = [&] { return add(libtorch, comparison.unit, comparison.libtorch()); };
  const auto take_tutti = [&] { return add("tutti", comparison.unit, comparison.tutti()); };
  for (int repeat = 0; repeat < repeats; ++repeat) {
    if (!comparison.libtorch) {
      take_tutti();
    } else if (repeat % 2 == 0) {
      const double base = take_libtorch();
      add(ratio, "1", take_tutti() / base);
    } else {
      const double ours = take_tutti();
      add(ratio, "1", ours / take_libtorch());
    }
    std::cerr << repeat + 1 << '/' << repeats << ' ' << comparison.name << '\n';
  }
}

Results take_all(std::vector<ComparisonMaker> makers, const std::vector<ComparisonMaker>& more, int repeats) {
  makers.insert(makers.end(), more.begin(), more.end());
  Results results;
  for (const auto& make : makers) {
    const Comparison comparison = make();
    take(comparison, repeats, results);
    const auto fault = comparison.check ? comparison.check() : std::string();
    if (!fault.empty()) results.faults.push_back(comparison.name + ": " + fault);
  }
  return results;
}

int report_steps(Report& report, const Results& results, const StepOptions& options) {
  report.add_text("One process, one thread: median of " + std::to_string(options.repeats) + " (min-max).");
  report.add_table({"", libtorch, "tutti", ratio});
  for (const auto& figure : results.values_of("figure")) {
    const auto values = [&](const char* system) { return results.values({{"figure", figure}, {"system", system}}); };
    const std::string unit = results.find({{"figure", figure}})->labels.at("unit");
    const int decimals = unit == "ns" ? 0 : 2;
    report.add_row({figure.get<std::string>() + ", " + unit, cell(values(libtorch), decimals),
                    cell(values("tutti"), decimals), cell(values(ratio), 2)});
  }
  report.add_note("batch: forward, backward, AdamW step every " + counted(options.steps, "batch") + ", zero_grad; " +
                  std::to_string(options.batches) + " batches of " + counted(options.batch_size, "sequence") +
                  " in a repeat");
  report.add_note("a part alone: " + counted(options.calls, "call") + " in a repeat");
  report.add_note(describe_gpt(options));
  report.add_json(results,
                  {{"steps", options.steps}, {"batches", options.batches}, {"batch_size", options.batch_size}});
  return report.finish(options.json);
}

}  // namespace

int run_step_benchmark(const Invocation& invocation) {
  const auto options = parse_step_options(invocation);
  if (invocation.under_launcher()) throw UsageError("bench step is for one process: run it without a launcher");
  at::set_num_threads(1);
  Report report;
  const Workload workload(options, 0, 1);
  const auto results = take_all(loop_comparisons(workload), part_comparisons(workload, options.calls), options.repeats);
  return report_steps(report, results, options);
}

}  // namespace tutti::bench
