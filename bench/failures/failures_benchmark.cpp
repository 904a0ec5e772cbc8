#include <iostream>
#include <optional>

#include "benchmarks.h"
#include "command/anonymous_file.h"
#include "command/child_process.h"
#include "failures/false_alarms.h"
#include "failures/rank.h"
#include "report/report.h"
#include "report/statistics.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

FailuresOptions parse_failures_options(const Invocation& invocation) {
  FailuresOptions options;
  ArgumentParser parser("failures",
                        "Times the failure reports of the other ranks after a rank fails; with --false-alarms, counts "
                        "reports of ranks that have not failed.",
                        options);
  parser.refuse_for_ranks(
      {parser
           .add_option("--failures", options.failures,
                       "killed (SIGKILL), stopped (SIGSTOP), astray (in a call that the others do not make), cut (the "
                       "link of one of two nodes is down; needs root)")
           ->delimiter(',')
           ->check(CLI::IsMember({"killed", "stopped", "astray", "cut"})),
       parser.add_option("--ranks", options.ranks, "Ranks, an even number")->check(CLI::Range(2, 64)),
       parser.add_option("--nodes", options.nodes, "1, or 2: two network namespaces of this machine (needs root)")
           ->check(CLI::Range(1, 2)),
       parser.add_option("--trials", options.trials, "Jobs for each row")->check(CLI::Range(1, 100'000)),
       parser.json_option()});
  parser
      .add_option("--during", options.during,
                  "Work of the ranks: collectives, training, local_sgd, checkpoints (one after the other)")
      ->delimiter(',')
      ->check(CLI::IsMember({"collectives", "training", "local_sgd", "checkpoints"}));
  parser
      .add_option("--false-alarms", options.false_alarm_minutes,
                  "Count false alarms instead, over this many minutes: the ranks train, are late, and are stopped for "
                  "--stall seconds")
      ->check(CLI::Range(0.0, 10'000.0, "MINUTES"));
  parser.add_option("--stall", options.stall, "With --false-alarms: seconds for which a rank is stopped")
      ->check(CLI::Range(0.1, 100.0, "SECONDS"));
  parser
      .add_option("--timeout", options.timeout,
                  "The ranks' heartbeat timeout and deadlock timeout in seconds; the library's default is 15")
      ->check(CLI::Range(1, 100));
  parser.add_option("--failure", options.failure)->group("");
  parser.parse_words(invocation);
  if (options.ranks % 2 != 0) throw UsageError("--ranks " + std::to_string(options.ranks) + " is not even");
  return options;
}

/// Returns nullopt on a machine that cannot make two nodes; nodes.sh prints the reason.
std::optional<FailuresRow> take_row(const FailuresOptions& options, const std::string& failure,
                                    const std::string& during) {
  FailuresRow row{.failure = failure, .during = during};
  const Place place{.ranks = options.ranks, .nodes = failure == "cut" ? 2 : options.nodes};
  for (int trial = 1; trial <= options.trials; ++trial) {
    const AnonymousFile file;
    auto command = launched(place, {own_program(), "failures", "--failure", failure, "--during", during, "--timeout",
                                    std::to_string(options.timeout), "--results", file.path()});
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

std::string description(const std::string& failure, int nodes) {
  if (failure == "cut") return "one of two nodes cut off (no packet passes)";
  std::string text = "in a call that the others do not make";
  if (failure == "killed") text = "killed (SIGKILL)";
  if (failure == "stopped") text = "stopped (SIGSTOP)";
  return text + (nodes == 1 ? ", one node" : ", two nodes");
}

void add_row(Report& report, const FailuresRow& row, const FailuresOptions& options) {
  std::vector<std::string> cells{description(row.failure, options.nodes), row.during, "", "", "", ""};
  if (!row.seconds.empty()) {
    const auto statistics = statistics_of(row.seconds);
    const double p99 = percentile(row.seconds, 99);
    cells = {cells[0],
             cells[1],
             number(statistics.median, 2),
             number(p99, 2),
             number(statistics.most, 2),
             row.closing.empty() ? "" : number(statistics_of(row.closing).median, 3)};
    report.add_json({{"failure", row.failure},
                     {"during", row.during},
                     {"p99", p99},
                     {"unit", "s"},
                     {"trials", row.seconds.size()},
                     {"misnamed", row.misnamed},
                     {"ranks", options.ranks},
                     {"nodes", row.failure == "cut" ? 2 : options.nodes}},
                    row.seconds);
  }
  cells.push_back(std::to_string(row.misnamed));
  report.add_row(cells);
}

}  // namespace

int run_failures_benchmark(const Invocation& invocation) {
  const auto options = parse_failures_options(invocation);
  if (invocation.under_launcher()) {
    return options.false_alarm_minutes > 0 ? run_healthy_rank(options, invocation.environment)
                                           : run_failures_rank(options, invocation.environment);
  }
  if (options.false_alarm_minutes > 0) return count_false_alarms(options);
  Report report;
  report.add_text("From the failure of one of " + counted(options.ranks, "rank") +
                  " until the last of the others reported it: " + counted(options.trials, "trial") + " each, seconds.");
  report.add_table({"failure", "during", "median", "99 of 100", "most", "kernel closes its sockets",
                    "trials with a wrong name or none"});
  int misnamed = 0;
  for (const std::string& failure : options.failures) {
    for (const std::string& during : options.during) {
      const auto row = take_row(options, failure, during);
      if (!row) break;
      misnamed += row->misnamed;
      add_row(report, *row, options);
    }
  }
  report.add_note("heartbeat_timeout and deadlock_timeout are " + std::to_string(options.timeout) +
                  " s; no other timeout and no environment variable is set");
  report.finish(options.json);
  return misnamed > 0 ? 1 : 0;
}

}  // namespace tutti::bench
