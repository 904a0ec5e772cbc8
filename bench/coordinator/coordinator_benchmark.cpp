#include <algorithm>
#include <chrono>
#include <csignal>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks.h"
#include "coordinator/idle_job.h"
#include "report/report.h"
#include "report/statistics.h"

namespace tutti::bench {
namespace {

struct Options : CommonOptions {
  int ranks = 64;
  int trials = 50;
  int idle_seconds = 20;
  std::vector<std::string> failures{"killed", "stopped"};
};

std::string median_and_p99(const std::vector<double>& values) {
  if (values.empty()) return "";
  return number(statistics_of(values).median, 1) + " / " + number(percentile(values, 99), 1);
}

std::string name_of(bool has_secret) {
  return has_secret ? "TLS" : "plain";
}

// A new job for each trial, because a failed rank cannot join again. Returns false if a rank was told wrongly.
bool add_failures(Report& report, const Options& options, const std::string& failure, bool has_secret) {
  std::vector<double> each;
  std::vector<double> last;
  int wrong = 0;
  for (int trial = 0; trial < options.trials; ++trial) {
    IdleJob job({.ranks = options.ranks, .has_secret = has_secret});
    // Ranks begin their heartbeats at different times, so trials do not repeat one phase.
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + 37 * (trial % 7)));
    const int victim = 1 + (trial * 7919) % (options.ranks - 1);
    const auto told = job.fail(victim, failure == "killed" ? SIGKILL : SIGSTOP);
    if (static_cast<int>(told.size()) != options.ranks - 1) {
      ++wrong;
      continue;
    }
    each.insert(each.end(), told.begin(), told.end());
    last.push_back(*std::ranges::max_element(told));
    std::cerr << failure << ", " << name_of(has_secret) << ' ' << trial + 1 << "/" << options.trials << ": "
              << number(last.back(), 1) << " ms\n";
  }
  report.add_row({failure, name_of(has_secret), std::to_string(options.trials), median_and_p99(each),
                  median_and_p99(last), std::to_string(wrong)});
  const Labels labels{
      {"failure", failure}, {"connection", name_of(has_secret)}, {"unit", "ms until the last rank is told"}};
  report.add_json(labels, last);
  return wrong == 0;
}

void add_idle(Report& report, const Options& options, bool has_secret) {
  IdleJob job({.ranks = options.ranks, .has_secret = has_secret});
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const double ranks_before = job.cpu_of_ranks();
  const double coordinator_before = job.cpu_of_coordinator();
  std::this_thread::sleep_for(std::chrono::seconds(options.idle_seconds));
  const double percent_per_ms = 100.0 / (options.idle_seconds * 1e3);
  const double of_coordinator = (job.cpu_of_coordinator() - coordinator_before) * percent_per_ms;
  const double of_a_rank = (job.cpu_of_ranks() - ranks_before) * percent_per_ms / options.ranks;
  report.add_row({name_of(has_secret), number(of_coordinator, 2), number(of_a_rank, 3)});
  report.add_json({{"connection", name_of(has_secret)}, {"unit", "CPU % of the coordinator"}}, {of_coordinator});
  report.add_json({{"connection", name_of(has_secret)}, {"unit", "CPU % of a rank"}}, {of_a_rank});
}

}  // namespace

int run_coordinator_benchmark(const Invocation& invocation) {
  Options options;
  ArgumentParser parser("coordinator",
                        "Times how soon the other ranks of a job are told of a rank that is killed or stopped, with "
                        "processes that do nothing else, and the CPU time of waiting.",
                        options);
  parser.refuse_for_ranks(
      {parser.add_option("--ranks", options.ranks, "Ranks of a job")->check(CLI::Range(2, 1024)),
       parser.add_option("--trials", options.trials, "Jobs for each row")->check(CLI::Range(1, 100'000)),
       parser.add_option("--failures", options.failures, "killed (SIGKILL), stopped (SIGSTOP)")
           ->delimiter(',')
           ->check(CLI::IsMember({"killed", "stopped"})),
       parser.add_option("--idle", options.idle_seconds, "Seconds in which CPU time is measured")
           ->check(CLI::Range(1, 3600)),
       parser.json_option()});
  parser.parse_words(invocation);
  Report report;
  report.add_text(counted(options.ranks, "rank") +
                  " on one machine. A stopped rank fails after 2 s without heartbeats.");
  report.add_table({"rank", "connection", "trials", "each rank told, p50 / p99 ms", "last rank told, p50 / p99 ms",
                    "wrong or missing"});
  bool is_right = true;
  for (const auto& failure : options.failures) {
    for (const bool has_secret : {true, false}) is_right &= add_failures(report, options, failure, has_secret);
  }
  report.add_table({"connection", "coordinator, % of a core", "a rank, % of a core"});
  for (const bool has_secret : {true, false}) add_idle(report, options, has_secret);
  const int code = report.finish(options.json);
  return is_right ? code : 1;
}

}  // namespace tutti::bench
