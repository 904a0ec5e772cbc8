#include "failures/options.h"

#include "command/words.h"
#include "report/spread.h"
#include "tutti/core/error.h"

namespace tutti::bench {

std::optional<FailuresOptions> parse_failures_options(const std::vector<std::string>& words, bool under_launcher) {
  FailuresOptions options;
  CLI::App app(
      "Times the failure reports of the other ranks after a rank fails, without a timeout; with --false-alarms, counts "
      "reports of ranks that have not failed.");
  app.name("tutti bench failures");
  app.option_defaults()->always_capture_default();
  const std::vector<CLI::Option*> place{
      app.add_option(
             "--failures", options.failures,
             "killed (SIGKILL), stopped (SIGSTOP), astray (in a call that the others do not make), cut (the link of "
             "one of two nodes is down; needs root)")
          ->delimiter(',')
          ->check(CLI::IsMember({"killed", "stopped", "astray", "cut"})),
      app.add_option("--ranks", options.ranks, "Ranks, an even number")->check(CLI::Range(2, 64)),
      app.add_option("--nodes", options.nodes, "1, or 2: two network namespaces of this machine (needs root)")
          ->check(CLI::Range(1, 2)),
      app.add_option("--trials", options.trials, "Jobs for each row")->check(CLI::Range(1, 100'000)),
      app.add_option("--json", options.json, "Also write the rows to this file")};
  app.add_option("--during", options.during,
                 "Work of the ranks: collectives, training, local_sgd, checkpoints (one after the other)")
      ->delimiter(',')
      ->check(CLI::IsMember({"collectives", "training", "local_sgd", "checkpoints"}));
  app.add_option(
         "--false-alarms", options.false_alarm_minutes,
         "Count false alarms instead, over this many minutes: the ranks train, are late, and are stopped for less "
         "than a second")
      ->check(CLI::Range(0.0, 10'000.0, "MINUTES"));
  app.add_option("--failure", options.failure)->group("");
  app.add_option("--results", options.results)->group("");
  if (!parse_words(app, words)) return std::nullopt;
  refuse_under_launcher(under_launcher, place);
  if (options.ranks % 2 != 0) throw UsageError("--ranks " + std::to_string(options.ranks) + " is not even");
  check_json_file(options.json);
  return options;
}

}  // namespace tutti::bench
