#include "failures/failures_benchmark.h"

#include <iostream>
#include <optional>

#include "command/anonymous_file.h"
#include "command/child_process.h"
#include "command/launched.h"
#include "failures/false_alarms.h"
#include "failures/options.h"
#include "failures/rank.h"
#include "failures/table.h"
#include "report/spread.h"

namespace tutti::bench {
namespace {

/// Returns nullopt on a machine that cannot make two nodes; nodes.sh prints the reason.
std::optional<FailuresRow> take_row(const FailuresOptions& options, const std::string& failure,
                                    const std::string& during) {
  FailuresRow row{.failure = failure, .during = during};
  const Place place{.ranks = options.ranks, .nodes = failure == "cut" ? 2 : options.nodes};
  for (int trial = 1; trial <= options.trials; ++trial) {
    const AnonymousFile file;
    auto command = launched(
        place, {own_program(), "failures", "--failure", failure, "--during", during, "--results", file.path()});
    // Discards the ranks' and the launcher's messages about the intended failure.
    command.insert(command.begin(), {"/bin/sh", "-c", "exec \"$@\" 2>/dev/null", "sh"});
    if (run_program(command, variables_of(place)) == nodes_impossible) return std::nullopt;
    const auto moments = read_moments(file.path());
    const bool fine = add_trial(row, moments, options.ranks);
    std::cerr << failure << " during " << during << " " << trial << "/" << options.trials << ": "
              << (row.seconds.empty() ? "?" : number(row.seconds.back(), 2)) << " s\n";
    if (fine) continue;
    for (const Moment& moment : moments) {
      std::cerr << "  rank " << moment.rank << ": " << (moment.said.empty() ? "fails" : moment.said) << '\n';
    }
  }
  return row;
}

}  // namespace

int run_failures_benchmark(const std::vector<std::string>& words) {
  const auto environment = read_environment();
  const bool under_launcher = environment.launcher != "none";
  const auto options = parse_failures_options(words, under_launcher);
  if (!options) return 0;
  if (under_launcher) {
    return options->false_alarm_minutes > 0 ? run_healthy_rank(*options, environment)
                                            : run_failures_rank(*options, environment);
  }
  if (options->false_alarm_minutes > 0) return count_false_alarms(*options);
  const Machine machine = describe_machine();
  std::vector<FailuresRow> rows;
  int misnamed = 0;
  for (const std::string& failure : options->failures) {
    for (const std::string& during : options->during) {
      const auto row = take_row(*options, failure, during);
      if (!row) break;
      misnamed += row->misnamed;
      rows.push_back(*row);
    }
  }
  std::cout << failures_markdown(rows, *options, machine);
  if (!options->json.empty()) write_file(options->json, failures_json(rows, *options, machine));
  return misnamed > 0 ? 1 : 0;
}

}  // namespace tutti::bench
