#include "plan_check/plan_check_benchmark.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "command/anonymous_file.h"
#include "command/launched.h"
#include "plan/figures.h"
#include "plan/predict.h"
#include "plan_check/options.h"
#include "plan_check/rank.h"
#include "plan_check/table.h"
#include "report/spread.h"

namespace tutti::bench {
namespace {

/// The rate limit of nodes.sh counts frames without preamble, checksum and gap.
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

/// Measures a part with ranks of tutti-plan, as `tutti plan` does.
template <typename Read>
auto measured(const PlanCheckOptions& options, const std::string& part, const Place& place, const Read& read) {
  const AnonymousFile file;
  const auto program = std::filesystem::path(own_program()).parent_path() / "tutti-plan";
  run_ranks(place, {program, "--part", part, "--results", file.path(), "--steps", "12"},
            plan::words_of(options.example));
  std::ifstream in(file.path());
  return read(in);
}

double measured_step(const PlanCheckOptions& options, const PlanCheckRow& row) {
  const AnonymousFile file;
  auto arguments = plan::words_of(options.example);
  arguments.insert(arguments.end(), {"--exchanges", row.exchange, "--steps", std::to_string(options.steps),
                                     "--accumulation", std::to_string(options.accumulation)});
  run_ranks({.ranks = row.layout.ranks(), .nodes = row.layout.nodes, .rate = row.rate},
            {own_program(), "plan", "--results", file.path()}, arguments);
  return read_step_ms(file.path());
}

/// Measures a node that is one of several, whose messages take longer than those of loopback. Returns nullopt on a
/// machine that cannot make two nodes; nodes.sh prints the reason.
std::optional<plan::Machine> among_nodes(const PlanCheckOptions& options, plan::Machine costs) {
  try {
    const Place unhindered{.ranks = 2, .nodes = 2, .rate = "10gbit"};
    const auto between = measured(options, "machine", unhindered, plan::read_machine);
    costs.message_us = between.message_us;
    costs.message_cpu_us = between.message_cpu_us;
    costs.message_gb_per_s = between.message_gb_per_s;
    return costs;
  } catch (const PartFailed& part) {
    if (part.code != nodes_impossible) throw;
    return std::nullopt;
  }
}

/// Predicts a row and then measures it. Measures the work of the prediction just before, because the speed of a shared
/// machine changes.
void take(const PlanCheckOptions& options, plan::Machine costs, PlanCheckRow& row) {
  const int at_once = std::min(row.layout.ranks(), static_cast<int>(costs.cores));
  auto work = measured(options, "work", {.ranks = at_once}, plan::read_work);
  work.micro_batches = options.accumulation;
  costs.cores /= row.layout.nodes;
  const double gbit = row.rate.empty() ? 1 : gbit_of(row.rate) * frame_on_wire;
  const plan::Link link{.name = row.rate, .latency_us = 0, .gbit = gbit};
  row.predicted.push_back(predict(costs, link, work, row.layout, exchange_named(row.exchange)).total_ms());
  row.measured.push_back(measured_step(options, row));
  std::cerr << counted(row.layout.nodes, "node") << ", " << counted(row.layout.ranks(), "rank")
            << (row.rate.empty() ? "" : " ") << row.rate << ", exchanging " << row.exchange << ": predicted "
            << number(row.predicted.back(), 0) << " ms, measured " << number(row.measured.back(), 0) << " ms\n";
}

std::string describe(const std::string& where, const plan::Machine& costs) {
  return "measured " + where + ": a barrier inside a node takes " + number(costs.node_barrier_us, 1) +
         " µs, a core adds " + number(costs.sum_gb_per_s, 1) + " GB/s; a message takes " + number(costs.message_us, 0) +
         " µs and " + number(costs.message_cpu_us, 0) + " µs of a core, which sends and receives " +
         number(costs.message_gb_per_s, 2) + " GB/s";
}

bool is_of_several(const PlanCheckRow& row) {
  return row.layout.nodes > 1;
}

/// Measures all rows once. Skips rows with several nodes on a machine that cannot make nodes.
void take_all(const PlanCheckOptions& options, std::vector<PlanCheckRow>& rows, std::vector<std::string>& notes) {
  const auto on_one = measured(options, "machine", {.ranks = 2}, plan::read_machine);
  notes = {plan::describe(options.example), describe("on one node", on_one)};
  std::optional<plan::Machine> on_several;
  if (std::ranges::any_of(rows, is_of_several)) {
    on_several = among_nodes(options, on_one);
    if (on_several) notes.push_back(describe("on two", *on_several));
  }
  if (!on_several) std::erase_if(rows, is_of_several);
  for (PlanCheckRow& row : rows) take(options, is_of_several(row) ? *on_several : on_one, row);
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
  std::vector<std::string> notes;
  try {
    for (int repeat = 0; repeat < options->repeats; ++repeat) take_all(*options, rows, notes);
  } catch (const PartFailed& part) {
    return part.code;
  }
  std::cout << plan_check_markdown(rows, *options, notes, machine);
  if (!options->json.empty()) write_file(options->json, plan_check_json(rows, *options, machine));
  return 0;
}

}  // namespace tutti::bench
