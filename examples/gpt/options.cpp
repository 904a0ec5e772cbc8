#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

namespace gpt {

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  auto& model = options.model;
  auto& sample = options.sample;
  const CLI::Range count(1, 1'000'000'000, "POSITIVE");
  const CLI::Range count_or_none(0, 1'000'000'000, "NUMBER");
  const CLI::Range number(0.0, 1e6, "NUMBER");
  CLI::App app("Train a byte-level GPT on text, on as many processes as a launcher starts", "gpt");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "File or folder of text")->required();
  app.add_option("--steps", options.steps, "Optimizer steps")->check(count);
  app.add_option("--batch-size", options.batch_size, "Windows in a micro-batch of a rank")->check(count);
  app.add_option("--accumulation", options.accumulation, "Micro-batches of a rank in a step")->check(count);
  app.add_option("--context", model.context, "Context length in bytes")->check(count);
  app.add_option("--width", model.width, "Width of the model")->check(count);
  app.add_option("--layers", model.layers, "Transformer blocks")->check(count);
  app.add_option("--heads", model.heads, "Attention heads; they divide the width")->check(count);
  app.add_option("--lr", options.learning_rate, "Peak learning rate")->check(number);
  auto* warmup = app.add_option("--warmup", options.warmup, "Steps until the peak rate, by default at most a tenth");
  warmup->check(count_or_none);
  app.add_option("--weight-decay", options.weight_decay, "AdamW's")->check(number);
  app.add_option("--clip", options.max_gradient_norm, "Maximum norm of the gradients")->check(number);
  app.add_option("--seed", options.seed, "Seed of the parameters, the order of the text and the sample");
  app.add_option("--prompt", sample.prompt, "Prompt of the sample");
  app.add_option("--sample-bytes", sample.bytes, "Length of the sample in bytes")->check(count_or_none);
  app.add_option("--temperature", sample.temperature, "Of the sample; 0: always the likeliest byte")->check(number);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw OptionError(error.what());
    app.exit(error);
    return std::nullopt;
  }
  if (model.width % model.heads != 0) {
    throw OptionError("--heads " + std::to_string(model.heads) + " does not divide --width " +
                      std::to_string(model.width));
  }
  if (warmup->count() == 0) options.warmup = std::min(options.warmup, options.steps / 10);
  if (options.warmup > options.steps) {
    throw OptionError("--warmup " + std::to_string(options.warmup) + " is longer than --steps " +
                      std::to_string(options.steps));
  }
  if (sample.prompt.empty()) throw OptionError("--prompt is empty: give at least one byte");
  model.feed_forward = 4 * model.width;
  sample.seed = options.seed;
  return options;
}

}  // namespace gpt
