#include "step/options.h"

#include "command/words.h"
#include "report/spread.h"
#include "tutti/core/error.h"

namespace tutti::bench {

std::optional<StepOptions> parse_step_options(const std::vector<std::string>& words) {
  StepOptions options;
  CLI::App app("One process: compares tutti's training loop with the plain LibTorch loop, as a whole and in parts.");
  app.name("tutti bench step");
  app.option_defaults()->always_capture_default();
  const auto count = CLI::Range(1, 1 << 20, "NUMBER");
  app.add_option("--batches", options.batches, "Batches in one repeat of a training loop")->check(count);
  app.add_option("--steps", options.steps, "Batches in an optimizer step (gradient accumulation)")->check(count);
  app.add_option("--batch-size", options.batch_size, "Sequences in a batch")->check(count);
  app.add_option("--width", options.width, "Width of the GPT, a multiple of 4")->check(count);
  app.add_option("--layers", options.layers, "Blocks of the GPT")->check(count);
  app.add_option("--context", options.context, "Tokens in a sequence")->check(count);
  app.add_option("--vocabulary", options.vocabulary, "Different tokens")->check(count);
  app.add_option("--calls", options.calls, "Calls of a part that is timed alone, in one repeat")->check(count);
  app.add_option("--repeats", options.repeats, "Repeats of each measurement")->check(count);
  app.add_option("--json", options.json, "Also write the rows to this file");
  if (!parse_words(app, words)) return std::nullopt;
  if (options.width % 4 != 0) throw UsageError("--width is not a multiple of the 4 attention heads");
  check_json_file(options.json);
  return options;
}

SyncOptions workload_of(const StepOptions& options) {
  SyncOptions workload;
  workload.ranks = 1;
  workload.batches = options.batches;
  workload.steps = options.steps;
  workload.batch_size = options.batch_size;
  workload.width = options.width;
  workload.layers = options.layers;
  workload.context = options.context;
  workload.vocabulary = options.vocabulary;
  return workload;
}

}  // namespace tutti::bench
