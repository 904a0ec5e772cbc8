#include "benchmarks.h"
#include "command/anonymous_file.h"
#include "command/child_process.h"
#include "local_sgd/methods.h"
#include "local_sgd/rank.h"
#include "local_sgd/table.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

LocalSGDBenchOptions parse_local_sgd_options(const Invocation& invocation) {
  LocalSGDBenchOptions options;
  options.rate = "100mbit";
  std::vector<std::string> methods;
  for (const Method& method : all_methods(options)) methods.push_back(method.name);
  ArgumentParser parser(
      "local-sgd", "Compares Local SGD, SlowMo and DiLoCo with synchronous training of a small GPT: time, bytes, loss.",
      options);
  parser.add_place(options);
  parser.add_option("--data", options.data, "File or folder of text");
  parser.add_count("--steps", options.steps, "Optimizer steps");
  parser.add_count("--local-steps", options.local_steps, "Optimizer steps between two averages");
  parser.add_count("--batch-size", options.batch_size, "Windows of text in a step of a rank");
  parser.add_count("--width", options.width, "Width of the GPT, a multiple of 4");
  parser.add_count("--layers", options.layers, "Blocks of the GPT");
  parser.add_count("--context", options.context, "Context length in bytes");
  parser.add_option("--outer-lr", options.outer_learning_rate, "Learning rate of DiLoCo's outer steps")
      ->check(CLI::Range(0.0, 10.0, "NUMBER"));
  parser.add_option("--outer-momentum", options.outer_momentum, "Momentum of outer steps")
      ->check(CLI::Range(0.0, 0.999));
  parser.add_option("--lr", options.learning_rate, "Peak learning rate")->check(CLI::Range(0.0, 10.0, "NUMBER"));
  parser.add_option("--seeds", options.seeds, "Runs of each method")->check(CLI::Range(1, 100));
  parser.add_flag(
      "--validate", options.validate,
      "Report the loss on the half of the held-out text on which options are chosen, not on the other half");
  parser.add_option("--methods", options.methods, "Methods to compare [all]")
      ->delimiter(',')
      ->check(CLI::IsMember(methods));
  auto* picture = parser.add_option("--picture", options.picture, "Also draw the rows as an SVG file");
  auto* from = parser.add_option("--from", options.from, "Draw rows that --json wrote; runs nothing");
  from->needs(picture)->check(CLI::ExistingFile);
  parser.refuse_for_ranks({picture});
  parser.parse_words(invocation);
  if (options.data.empty() && options.from.empty()) throw UsageError("--data is required: file or folder of text");
  check_gpt_width(options.width);
  return options;
}

int draw(const std::string& rows, const std::string& picture) {
  return run_program({"/usr/bin/env", "python3", script("loss_picture.py"), rows, picture});
}

}  // namespace

int run_local_sgd_benchmark(const Invocation& invocation) {
  auto options = parse_local_sgd_options(invocation);
  if (!options.from.empty()) return draw(options.from, options.picture);
  if (invocation.under_launcher()) return run_local_sgd_rank(options, invocation.environment);
  const AnonymousFile rows;
  if (options.json.empty()) options.json = rows.path();
  Report report;
  const auto runs = take_results(options, {own_program(), "local-sgd"}, invocation.words, options.json);
  report_local_sgd(report, runs, options);
  return options.picture.empty() ? 0 : draw(options.json, options.picture);
}

}  // namespace tutti::bench
