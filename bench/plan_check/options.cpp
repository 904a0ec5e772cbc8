#include "plan_check/options.h"

#include <regex>

#include "command/words.h"
#include "report/spread.h"
#include "tutti/core/error.h"

namespace tutti::bench {

std::optional<PlanCheckOptions> parse_plan_check_options(const std::vector<std::string>& words, bool under_launcher) {
  PlanCheckOptions options;
  CLI::App app(
      "Compares the steps that `tutti plan` predicts with measured steps, on one node and on several nodes, which are "
      "network namespaces of this machine (needs root).");
  app.name("tutti bench plan");
  app.option_defaults()->always_capture_default();
  const auto count = CLI::Range(1, 1 << 20, "NUMBER");
  const auto few = CLI::Range(1, 64);
  const std::vector<CLI::Option*> place{
      app.add_option("--ranks", options.ranks, "Ranks on one node; 0: none")->delimiter(',')->check(CLI::Range(0, 64)),
      app.add_option("--nodes", options.nodes, "Nodes; 1: one node only")->delimiter(',')->check(few),
      app.add_option("--ranks-per-node", options.ranks_per_node, "Ranks on each of several nodes")
          ->delimiter(',')
          ->check(few),
      app.add_option("--rates", options.rates, "Rates of the links between nodes")->delimiter(','),
      app.add_option("--repeats", options.repeats, "Repeats of each measurement")->check(count),
      app.add_option("--json", options.json, "Also write the rows to this file")};
  app.add_option("--exchanges", options.exchanges, "Synchronization of gradients: once in a step, or in every pass")
      ->delimiter(',')
      ->check(CLI::IsMember({"once", "every"}));
  app.add_option("--accumulation", options.accumulation, "Micro-batches in a step")->check(count);
  app.add_option("--steps", options.steps, "Timed steps")->check(count);
  for (const auto& [name, member] : plan::example_options()) {
    app.add_option(name, options.example.*member, "Size of the example GPT")->check(count);
  }
  app.add_option("--results", options.results)->group("");
  if (!parse_words(app, words)) return std::nullopt;
  refuse_under_launcher(under_launcher, place);
  if (options.example.width % 4 != 0) throw UsageError("--width is not a multiple of the 4 attention heads");
  for (const auto& rate : options.rates) gbit_of(rate);
  check_json_file(options.json);
  return options;
}

plan::Exchange exchange_named(const std::string& name) {
  return name == "every" ? plan::Exchange::in_every_pass : plan::Exchange::once_a_step;
}

double gbit_of(const std::string& rate) {
  std::smatch parts;
  if (!std::regex_match(rate, parts, std::regex(R"((?=.*[1-9])([0-9]+(?:\.[0-9]+)?)([mg])bit)"))) {
    throw UsageError("--rates '" + rate + "' is not a rate: give one such as 1gbit or 100mbit");
  }
  return std::stod(parts[1]) * (parts[2] == "m" ? 1e-3 : 1);
}

}  // namespace tutti::bench
