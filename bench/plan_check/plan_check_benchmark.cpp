#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <regex>

#include "benchmarks.h"
#include "command/anonymous_file.h"
#include "plan/figures.h"
#include "plan/predict.h"
#include "plan_check/rank.h"
#include "report/report.h"
#include "report/statistics.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

/// The rate limit of nodes.sh counts frames without preamble, checksum and gap.
constexpr double frame_on_wire = 1538.0 / 1514.0;

struct PlanCheckRow {
  plan::Layout layout;
  std::string rate{};  ///< empty on one node
  std::string exchange{};
  std::vector<double> predicted{};  ///< milliseconds of a step, one for each repeat
  std::vector<double> measured{};

  /// Returns (predicted - measured) / measured of the medians.
  double error() const { return statistics_of(predicted).median / statistics_of(measured).median - 1; }
};

/// Converts a rate such as 100mbit to Gbit/s. Throws UsageError.
double gbit_of(const std::string& rate) {
  std::smatch parts;
  if (!std::regex_match(rate, parts, std::regex(R"((?=.*[1-9])([0-9]+(?:\.[0-9]+)?)([mg])bit)"))) {
    throw UsageError("--rates '" + rate + "' is not a rate: give one such as 1gbit or 100mbit");
  }
  return std::stod(parts[1]) * (parts[2] == "m" ? 1e-3 : 1);
}

PlanCheckOptions parse_plan_check_options(const Invocation& invocation) {
  PlanCheckOptions options;
  ArgumentParser parser(
      "plan",
      "Compares the steps that `tutti plan` predicts with measured steps, on one node and on several nodes, which are "
      "network namespaces of this machine (needs root).",
      options);
  const auto few = CLI::Range(1, 64);
  parser.refuse_for_ranks(
      {parser.add_option("--ranks", options.ranks, "Ranks on one node; 0: none")
           ->delimiter(',')
           ->check(CLI::Range(0, 64)),
       parser.add_option("--nodes", options.nodes, "Nodes; 1: one node only")->delimiter(',')->check(few),
       parser.add_option("--ranks-per-node", options.ranks_per_node, "Ranks on each of several nodes")
           ->delimiter(',')
           ->check(few),
       parser.add_option("--rates", options.rates, "Rates of the links between nodes")->delimiter(','),
       parser.add_count("--repeats", options.repeats, "Repeats of each measurement"), parser.json_option()});
  parser.add_option("--exchanges", options.exchanges, "Synchronization of gradients: once in a step, or in every pass")
      ->delimiter(',')
      ->check(CLI::IsMember({"once", "every"}));
  parser.add_count("--accumulation", options.accumulation, "Micro-batches in a step");
  parser.add_count("--steps", options.steps, "Timed steps");
  for (const auto& [name, member] : plan::example_options()) {
    parser.add_count(name, options.example.*member, "Size of the example GPT");
  }
  parser.parse_words(invocation);
  check_gpt_width(options.example.width);
  for (const auto& rate : options.rates) gbit_of(rate);
  return options;
}

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
  auto arguments = plan::words_of(options.example);
  arguments.insert(arguments.end(), {"--exchanges", row.exchange, "--steps", std::to_string(options.steps),
                                     "--accumulation", std::to_string(options.accumulation)});
  const auto results = take_results({.ranks = row.layout.ranks(), .nodes = row.layout.nodes, .rate = row.rate},
                                    {own_program(), "plan"}, arguments, options.json);
  return statistics_of(results.rows.at(0).values).median;
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
  } catch (const Exit& part) {
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

int report_plan_check(Report& report, const std::vector<PlanCheckRow>& rows, const PlanCheckOptions& options,
                      const std::vector<std::string>& notes) {
  report.add_text("Milliseconds of an optimizer step of " + counted(options.accumulation, "micro-batch") +
                  " a rank, as predicted and as measured: median of " + std::to_string(options.repeats) +
                  ", (min-max).");
  report.add_table({"nodes", "ranks", "link", "gradients exchanged", "predicted", "measured", "error"});
  std::vector<double> errors;
  for (const PlanCheckRow& row : rows) {
    const double error = row.error();
    errors.push_back(100 * std::abs(error));
    report.add_row({std::to_string(row.layout.nodes), std::to_string(row.layout.ranks()), row.rate,
                    row.exchange == "once" ? "once a step" : "in every pass", cell(row.predicted, 0),
                    cell(row.measured, 0), (error < 0 ? "" : "+") + number(100 * error, 1) + " %"});
    report.add_json({{"nodes", row.layout.nodes},
                     {"ranks", row.layout.ranks()},
                     {"exchange", row.exchange},
                     {"predicted", statistics_of(row.predicted).median},
                     {"error", error},
                     {"unit", "ms/step"},
                     {"repeats", row.measured.size()},
                     {"steps", options.steps},
                     {"accumulation", options.accumulation},
                     {"rate", row.rate.empty() ? Labels() : Labels(row.rate)}},
                    row.measured);
  }
  if (!errors.empty()) {
    const auto statistics = statistics_of(errors);
    report.add_note("the largest error is " + number(statistics.most, 1) + " %, the median " +
                    number(statistics.median, 1) + " %; a measured step is the median of " +
                    std::to_string(options.steps));
  }
  for (const auto& note : notes) report.add_note(note);
  return report.finish(options.json);
}

}  // namespace

plan::Exchange exchange_named(const std::string& name) {
  return name == "every" ? plan::Exchange::in_every_pass : plan::Exchange::once_a_step;
}

int run_plan_check_benchmark(const Invocation& invocation) {
  const auto options = parse_plan_check_options(invocation);
  if (invocation.under_launcher()) return run_plan_check_rank(options, invocation.environment);
  Report report;
  auto rows = rows_for(options);
  std::vector<std::string> notes;
  for (int repeat = 0; repeat < options.repeats; ++repeat) take_all(options, rows, notes);
  return report_plan_check(report, rows, options, notes);
}

}  // namespace tutti::bench
