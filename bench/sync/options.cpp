#include "sync/options.h"

#include <regex>

#include "command/words.h"
#include "report/spread.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

constexpr int heads = 4;
constexpr int at_most = 1 << 20;

void add_work_options(CLI::App& app, SyncOptions& options) {
  const auto number = [&app](const std::string& name, int& value, const std::string& text) {
    app.add_option(name, value, text)->check(CLI::Range(1, at_most))->capture_default_str();
  };
  number("--batches", options.batches, "Timed batches");
  number("--steps", options.steps, "Batches in an optimizer step (gradient accumulation)");
  number("--batch-size", options.batch_size, "Sequences in a batch of a rank");
  number("--repeats", options.repeats, "Repeats of each measurement");
  number("--width", options.width, "Width of the GPT, a multiple of 4");
  number("--layers", options.layers, "Blocks of the GPT");
  number("--context", options.context, "Tokens in a sequence");
  number("--vocabulary", options.vocabulary, "Different tokens");
}

}  // namespace

void check_place(const SyncOptions& options, bool rate_given) {
  if (options.ranks % options.nodes != 0) {
    throw UsageError("--ranks " + std::to_string(options.ranks) + " do not divide evenly among --nodes " +
                     std::to_string(options.nodes));
  }
  if (rate_given && options.nodes == 1) throw UsageError("--rate is the rate of a link between nodes: add --nodes 2");
  if (!std::regex_match(options.rate, std::regex(R"((?=.*[1-9])[0-9]+(\.[0-9]+)?[kmg]bit)"))) {
    throw UsageError("--rate '" + options.rate + "' is not a rate: give one such as 1gbit or 100mbit");
  }
}

std::optional<SyncOptions> parse_sync_options(const std::vector<std::string>& words, bool under_launcher) {
  SyncOptions options;
  CLI::App app("Times gradient synchronization under accumulation, in tutti and in other systems.");
  app.name("tutti bench sync");
  const std::vector<CLI::Option*> place{
      app.add_option("--ranks", options.ranks, "Ranks of all nodes")->check(CLI::Range(1, 1024))->capture_default_str(),
      app.add_option("--nodes", options.nodes, "1, or 2: two network namespaces of this machine (needs root)")
          ->check(CLI::Range(1, 2))
          ->capture_default_str(),
      app.add_option("--rate", options.rate, "Rate of the link between two nodes: 1gbit, 100mbit [1gbit]"),
      app.add_option("--python", options.python, "A Python with PyTorch and Accelerate; adds rows for both")};
  add_work_options(app, options);
  app.add_flag("!--no-peers", options.peers,
               "Measure only tutti and the loop without communication; c10d::Reducer computes the reference result");
  app.add_option("--json", options.json, "Also write the rows to this file");
  app.add_option("--results", options.results)->group("");

  if (!parse_words(app, words)) return std::nullopt;
  if (options.width % heads != 0) {
    throw UsageError("--width " + std::to_string(options.width) + " is not a multiple of the 4 attention heads");
  }
  refuse_under_launcher(under_launcher, place);
  check_place(options, app.count("--rate") > 0);
  check_json_file(options.json);
  return options;
}

std::vector<std::string> work_arguments(const SyncOptions& options, int repeats) {
  return {"--batches",    std::to_string(options.batches),    "--steps",      std::to_string(options.steps),
          "--batch-size", std::to_string(options.batch_size), "--repeats",    std::to_string(repeats),
          "--width",      std::to_string(options.width),      "--layers",     std::to_string(options.layers),
          "--context",    std::to_string(options.context),    "--vocabulary", std::to_string(options.vocabulary)};
}

}  // namespace tutti::bench
