#include <algorithm>
#include <chrono>
#include <iostream>
#include <utility>

#include "benchmarks.h"
#include "command/anonymous_file.h"
#include "report/report.h"
#include "report/statistics.h"
#include "scale/rank.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

ScaleOptions parse_scale_options(const Invocation& invocation) {
  ScaleOptions options;
  ArgumentParser parser(
      "scale", "Times many ranks on one machine that connect, train a toy model for some steps and exit.", options);
  parser.refuse_for_ranks(
      {parser.add_option("--ranks", options.ranks, "Numbers of ranks")->delimiter(',')->check(CLI::Range(2, 4096)),
       parser.add_option("--nodes", options.nodes, "Nodes of this machine (network namespaces; needs root)")
           ->check(CLI::Range(1, 16)),
       parser.add_option("--rate", options.rate, "Rate of each node's link"),
       parser.add_flag("--forked", options.forked,
                       "Fork the ranks of a node from one process that has loaded LibTorch and computed nothing"),
       parser.add_count("--repeats", options.repeats, "Repeats of each measurement"), parser.json_option()});
  parser.add_count("--steps", options.steps, "Optimizer steps");
  parser
      .add_option("--gradients", options.gradients, "Bytes of gradients, such as 64MiB, in addition to a few numbers")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::NonNegativeNumber);
  parser.add_option("--backend", options.backend, "auto, tcp or shared_memory")
      ->check(CLI::IsMember({"auto", "tcp", "shared_memory"}));
  parser.add_flag("--alone", options.alone)->group("");
  parser.add_option("--forks", options.forks)->group("");
  parser.parse_words(invocation);
  for (const int ranks : options.ranks) {
    if (ranks % options.nodes != 0) {
      throw UsageError(std::to_string(ranks) + " ranks cannot be split evenly over " + std::to_string(options.nodes) +
                       " nodes: choose other --ranks");
    }
  }
  return options;
}

Labels labels_of(int ranks, bool alone, const std::string& figure, const std::string& unit) {
  return {{"ranks", ranks}, {"figure", alone ? figure + " not connected" : figure}, {"unit", unit}};
}

void take_figures(const ScaleOptions& options, std::vector<std::string> words, int ranks, bool alone,
                  Results& results) {
  const AnonymousFile file;
  const auto begin = std::chrono::steady_clock::now();
  const CpuSeconds before = cpu_of_children();
  const int processes = options.forked ? options.nodes : ranks;  // the number that the launcher starts
  words.insert(words.end(), {"--results", file.path()});
  if (alone) words.emplace_back("--alone");
  if (options.forked) words.insert(words.end(), {"--forks", std::to_string(ranks / options.nodes)});
  run_ranks({.ranks = processes, .nodes = options.nodes, .rate = options.rate}, {own_program(), "scale"}, words);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const CpuSeconds after = cpu_of_children();
  const double cpu = after.all - before.all;
  const ResourceUsage usage = read_usage(file.path(), ranks);
  const auto add = [&](const char* figure, double value, const char* unit = "s") {
    results.row(labels_of(ranks, alone, figure, unit)).values.push_back(value);
  };
  // Resources are those of the last repeat.
  const auto set = [&](const char* figure, double value, const char* unit = "1") {
    results.row(labels_of(ranks, alone, figure, unit)).values = {value};
  };
  add("time", seconds.count());
  add("CPU", cpu);
  add("CPU in the kernel", after.kernel - before.kernel);
  add("CPU in main", usage.cpu);
  set("threads", usage.threads);
  set("descriptors", usage.descriptors);
  set("page tables", usage.page_tables, "B");
  std::cerr << counted(ranks, "rank") << (alone ? ", not connected: " : ": ") << number(seconds.count(), 1) << " s, "
            << number(cpu, 1) << " s of CPU, " << number(usage.cpu, 1) << " in main()\n";
}

std::string title(const ScaleOptions& options) {
  std::string text = "Ranks of one machine";
  if (options.nodes > 1) {
    text += " on " + counted(options.nodes, "node") + " at " + options.rate + " (network namespaces)";
  }
  if (options.forked) text += ", forked from one process of each node,";
  text += " connect, take " + counted(options.steps, "optimizer step") + " of a toy model";
  if (options.gradients != 0) {
    text += " with " + number(static_cast<double>(options.gradients) / (1 << 20), 1) + " MiB of gradients";
  }
  return text + " and exit" + (options.backend == "auto" ? "." : ", backend " + options.backend + ".");
}

int report_scale(Report& report, const Results& results, const ScaleOptions& options) {
  report.add_text(title(options));
  report.add_table({"ranks", "seconds", "CPU s", "×", "in the kernel", "in main()", "×", "threads", "descriptors",
                    "page tables, MiB"});
  for (std::size_t i = 0; i < options.ranks.size(); ++i) {
    for (const bool alone : {false, true}) {
      const auto values = [&](std::size_t row, const std::string& figure) {
        return results.values({{"ranks", options.ranks[row]}, {"figure", alone ? figure + " not connected" : figure}});
      };
      const auto growth = [&](const std::string& figure) {
        if (i == 0) return std::string();
        return number(statistics_of(values(i, figure)).median / statistics_of(values(i - 1, figure)).median, 2);
      };
      report.add_row({std::to_string(options.ranks[i]) + (alone ? ", not connected" : ""), cell(values(i, "time"), 1),
                      cell(values(i, "CPU"), 1), growth("CPU"), cell(values(i, "CPU in the kernel"), 1),
                      cell(values(i, "CPU in main"), 1), growth("CPU in main"), cell(values(i, "threads"), 0),
                      cell(values(i, "descriptors"), 0), number(values(i, "page tables").front() / (1 << 20), 1)});
    }
  }
  report.add_note("×: ratio to the previous number of ranks");
  report.add_note(options.forked ? "in main(): without LibTorch's start, which happens once on a node"
                                 : "in main(): without LibTorch's start and end in each process");
  report.add_note("not connected: the same processes do the same work, and exit when all have done it");
  report.add_note("threads, descriptors and page tables: the maximum of all ranks, during training");
  report.add_json(results, {{"steps", options.steps},
                            {"gradients", options.gradients},
                            {"backend", options.backend},
                            {"nodes", options.nodes},
                            {"forked", options.forked},
                            {"rate", options.rate}});
  return report.finish(options.json);
}

}  // namespace

int run_scale_benchmark(const Invocation& invocation) {
  const auto options = parse_scale_options(invocation);
  if (invocation.under_launcher()) return run_scale_rank(options, invocation.environment);
  Report report;
  Results results;
  for (const int ranks : options.ranks) {
    // Connected and unconnected ranks alternate.
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      for (const bool alone : {false, true}) take_figures(options, invocation.words, ranks, alone, results);
    }
  }
  return report_scale(report, results, options);
}

}  // namespace tutti::bench
