#include "scale/options.h"

#include "command/words.h"
#include "report/spread.h"
#include "tutti/core/error.h"

namespace tutti::bench {

std::optional<ScaleOptions> parse_scale_options(const std::vector<std::string>& words, bool under_launcher) {
  ScaleOptions options;
  CLI::App app("Times many ranks on one machine that connect, train a toy model for some steps and exit.");
  app.name("tutti bench scale");
  app.option_defaults()->always_capture_default();
  const auto count = CLI::Range(1, 1 << 20, "NUMBER");
  const std::vector<CLI::Option*> place{
      app.add_option("--ranks", options.ranks, "Numbers of ranks")->delimiter(',')->check(CLI::Range(2, 4096)),
      app.add_option("--nodes", options.nodes, "Nodes of this machine (network namespaces; needs root)")
          ->check(CLI::Range(1, 16)),
      app.add_option("--rate", options.rate, "Rate of each node's link"),
      app.add_flag("--forked", options.forked,
                   "Fork the ranks of a node from one process that has loaded LibTorch and computed nothing"),
      app.add_option("--repeats", options.repeats, "Repeats of each measurement")->check(count),
      app.add_option("--json", options.json, "Also write the rows to this file")};
  app.add_option("--steps", options.steps, "Optimizer steps")->check(count);
  app.add_option("--gradients", options.gradients, "Bytes of gradients, such as 64MiB, in addition to a few numbers")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::NonNegativeNumber);
  app.add_option("--backend", options.backend, "auto, gloo or shared_memory")
      ->check(CLI::IsMember({"auto", "gloo", "shared_memory"}));
  app.add_flag("--alone", options.alone)->group("");
  app.add_option("--forks", options.forks)->group("");
  app.add_option("--results", options.results)->group("");
  if (!parse_words(app, words)) return std::nullopt;
  refuse_under_launcher(under_launcher, place);
  for (const int ranks : options.ranks) {
    if (ranks % options.nodes != 0) {
      throw UsageError(std::to_string(ranks) + " ranks cannot be split evenly over " + std::to_string(options.nodes) +
                       " nodes: choose other --ranks");
    }
  }
  check_json_file(options.json);
  return options;
}

std::vector<std::string> work_arguments(const ScaleOptions& options) {
  std::vector<std::string> words{"--steps",     std::to_string(options.steps),
                                 "--gradients", std::to_string(options.gradients),
                                 "--backend",   options.backend};
  if (options.alone) words.emplace_back("--alone");
  return words;
}

}  // namespace tutti::bench
