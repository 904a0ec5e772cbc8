#include "plan_check/plan_check_benchmark.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "command/launched.h"
#include "command/nameless_file.h"
#include "plan/figures.h"
#include "plan/predict.h"
#include "plan_check/options.h"
#include "plan_check/rank.h"
#include "plan_check/table.h"
#include "report/spread.h"

namespace tutti::bench {
namespace {

/// What nodes.sh lets pass is counted in frames without preamble, checksum and gap.
constexpr double frame_on_wire = 1538.0 / 1514.0;

std::vector<PlanCheckRow> rows_for(const PlanCheckOptions& options) {
  std::vector<PlanCheckRow> rows;
  const auto add = [&](int nodes, int ranks_per_node, const std::string& rate) {
    for (const auto& exchange : options.exchanges) {
      rows.push_back(
          {.layout = {.nodes = nodes, .ranks_per_node = ranks_per_node}, .rate = rate, .exchange = exchange});
    }
  };
  for (const int ranks : options.ranks) {
    if (ranks > 0) add(1, ranks, "");
  }
  for (const int nodes : options.nodes) {
    for (const int ranks_per_node : options.ranks_per_node) {
      for (const auto& rate : options.rates) {
        if (nodes > 1) add(nodes, ranks_per_node, rate);
      }
    }
  }
  return rows;
}

/// Lets `ranks` of tutti-plan measure a part, as `tutti plan` does.
template <typename Read>
auto measured(const PlanCheckOptions& options, const std::string& part, int ranks, const Read& read) {
  const NamelessFile file;
  const auto program = std::filesystem::path(own_program()).parent_path() / "tutti-plan";
  run_ranks({.ranks = ranks}, {program, "--part", part, "--results", file.path(), "--steps", "12"},
            plan::words_of(options.example));
  std::ifstream in(file.path());
  return read(in);
}

double measured_step(const PlanCheckOptions& options, const PlanCheckRow& row) {
  const NamelessFile file;
  auto arguments = plan::words_of(options.example);
  arguments.insert(arguments.end(), {"--exchanges", row.exchange, "--steps", std::to_string(options.steps),
                                     "--accumulation", std::to_string(options.accumulation)});
  run_ranks({.ranks = row.layout.ranks(), .nodes = row.layout.nodes, .rate = row.rate},
            {own_program(), "plan", "--results", file.path()}, arguments);
  return read_step_ms(file.path());
}

/// Predicts a row from work that was measured just before, as a shared machine changes its pace; and takes it.
void take(const PlanCheckOptions& options, plan::Machine costs, PlanCheckRow& row) {
  const int at_once = std::min(row.layout.ranks(), static_cast<int>(costs.cores));
  auto work = measured(options, "work", at_once, plan::read_work);
  work.micro_batches = options.accumulation;
  costs.cores /= row.layout.nodes;
  const double gbit = row.rate.empty() ? 1 : gbit_of(row.rate) * frame_on_wire;
  const plan::Link link{.name = row.rate, .latency_us = 0, .gbit = gbit};
  row.predicted.push_back(predict(costs, link, work, row.layout, exchange_named(row.exchange)).total_ms());
  row.measured.push_back(measured_step(options, row));
  std::cerr << counted(row.layout.nodes, "node") << ", " << counted(row.layout.ranks(), "rank") << ' ' << row.rate
            << ", exchanging " << row.exchange << ": predicted " << number(row.predicted.back(), 0) << " ms, measured "
            << number(row.measured.back(), 0) << " ms\n";
}

std::string describe(const plan::Machine& costs) {
  return "measured on loopback: ranks of a node meet in " + number(costs.meeting_us, 1) + " µs, a core adds " +
         number(costs.sum_gb_per_s, 1) + " GB/s; a message takes " + number(costs.message_us, 0) + " µs and " +
         number(costs.message_cpu_us, 0) + " µs of a core, which sends and receives " +
         number(costs.message_gb_per_s, 2) + " GB/s";
}

}  // namespace

int run_plan_check_benchmark(const std::vector<std::string>& words) {
  const auto environment = read_environment();
  const bool under_launcher = environment.launcher != "none";
  const auto options = parse_plan_check_options(words, under_launcher);
  if (!options) return 0;
  if (under_launcher) return run_plan_check_rank(*options, environment);
  const Machine machine = describe_machine();
  auto rows = rows_for(*options);
  std::vector<std::string> notes{plan::describe(options->example)};
  try {
    for (int repeat = 0; repeat < options->repeats; ++repeat) {
      const auto costs = measured(*options, "machine", 2, plan::read_machine);
      if (repeat == 0) notes.push_back(describe(costs));
      std::erase_if(rows, [&](PlanCheckRow& row) {
        try {
          take(*options, costs, row);
        } catch (const PartFailed& part) {
          // nodes.sh has said why.
          if (part.code != nodes_impossible || row.layout.nodes == 1) throw;
          return true;
        }
        return false;
      });
    }
  } catch (const PartFailed& part) {
    return part.code;
  }
  std::cout << plan_check_markdown(rows, *options, notes, machine);
  if (!options->json.empty()) write_file(options->json, plan_check_json(rows, *options, machine));
  return 0;
}

}  // namespace tutti::bench
