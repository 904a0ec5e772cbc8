#include "local_sgd/options.h"

#include "command/words.h"
#include "local_sgd/methods.h"
#include "tutti/core/error.h"

namespace tutti::bench {

std::optional<LocalSGDBenchOptions> parse_local_sgd_options(const std::vector<std::string>& words,
                                                            bool under_launcher) {
  LocalSGDBenchOptions options;
  const CLI::Range count(1, 1'000'000'000, "POSITIVE");
  CLI::App app("Compares Local SGD, SlowMo and DiLoCo with synchronous training of a small GPT: time, bytes, loss.");
  app.name("tutti bench local-sgd");
  app.option_defaults()->always_capture_default();
  const std::vector<CLI::Option*> place{
      app.add_option("--ranks", options.ranks, "Ranks of all nodes")->check(CLI::Range(1, 1024)),
      app.add_option("--nodes", options.nodes, "1, or 2: two network namespaces of this machine (needs root)")
          ->check(CLI::Range(1, 2)),
      app.add_option("--rate", options.rate, "Rate of the link between two nodes")};
  app.add_option("--data", options.data, "File or folder of text");
  app.add_option("--steps", options.steps, "Optimizer steps")->check(count);
  app.add_option("--local-steps", options.local_steps, "Optimizer steps between two averages")->check(count);
  app.add_option("--batch-size", options.batch_size, "Windows of text in a step of a rank")->check(count);
  app.add_option("--width", options.width, "Width of the GPT, a multiple of 4")->check(count);
  app.add_option("--layers", options.layers, "Blocks of the GPT")->check(count);
  app.add_option("--context", options.context, "Context length in bytes")->check(count);
  app.add_option("--outer-lr", options.outer_learning_rate, "Learning rate of DiLoCo's outer steps")
      ->check(CLI::Range(0.0, 10.0, "NUMBER"));
  app.add_option("--outer-momentum", options.outer_momentum, "Momentum of outer steps")->check(CLI::Range(0.0, 0.999));
  app.add_option("--lr", options.learning_rate, "Peak learning rate")->check(CLI::Range(0.0, 10.0, "NUMBER"));
  app.add_option("--seeds", options.seeds, "Runs of each method")->check(CLI::Range(1, 100));
  app.add_flag("--validate", options.validate,
               "Report the loss on the half of the held-out text on which options are chosen, not on the other half");
  app.add_option("--methods", options.methods, "Of " + known_methods() + " [all]")->delimiter(',');
  app.add_option("--json", options.json, "Also write the rows to this file");
  auto* picture = app.add_option("--picture", options.picture, "Also draw the rows as an SVG file");
  auto* from = app.add_option("--from", options.from, "Draw rows that --json wrote; runs nothing")->needs(picture);
  from->check(CLI::ExistingFile);
  if (!parse_words(app, words)) return std::nullopt;
  if (options.data.empty() && options.from.empty()) throw UsageError("--data is required: file or folder of text");
  for (const std::string& method : options.methods) (void)method_named(method, options);
  if (options.width % 4 != 0) throw UsageError("--width is not a multiple of the 4 attention heads");
  if (options.ranks % options.nodes != 0) throw UsageError("--ranks do not divide evenly among --nodes");
  refuse_under_launcher(under_launcher, place);
  return options;
}

std::vector<std::string> work_arguments(const LocalSGDBenchOptions& options) {
  std::vector<std::string> words{"--data",
                                 options.data,
                                 "--steps",
                                 std::to_string(options.steps),
                                 "--local-steps",
                                 std::to_string(options.local_steps),
                                 "--batch-size",
                                 std::to_string(options.batch_size),
                                 "--width",
                                 std::to_string(options.width),
                                 "--layers",
                                 std::to_string(options.layers),
                                 "--context",
                                 std::to_string(options.context),
                                 "--outer-lr",
                                 std::to_string(options.outer_learning_rate),
                                 "--outer-momentum",
                                 std::to_string(options.outer_momentum),
                                 "--lr",
                                 std::to_string(options.learning_rate),
                                 "--seeds",
                                 std::to_string(options.seeds)};
  if (options.validate) words.emplace_back("--validate");
  for (const std::string& method : options.methods) words.insert(words.end(), {"--methods", method});
  if (!options.json.empty()) words.insert(words.end(), {"--json", options.json});
  if (!options.picture.empty()) words.insert(words.end(), {"--picture", options.picture});
  return words;
}

}  // namespace tutti::bench
