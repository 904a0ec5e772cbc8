#include "trainer/options.h"

#include <tutti/core/error.h>

#include <CLI/CLI.hpp>
#include <string>

namespace gpt {

std::optional<TrainerProgramOptions> parse_trainer_options(int argc, char** argv) {
  TrainerProgramOptions options;
  std::string precision = "no";
  const CLI::Range count(1, 1'000'000'000, "POSITIVE");
  const CLI::Range count_or_none(0, 1'000'000'000, "NUMBER");
  const CLI::Range number(0.0, 1e6, "NUMBER");
  CLI::App app("Train a byte-level GPT with tutti's Trainer; Ctrl-C saves, --resume resumes", "trainer");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "File or folder of text")->required();
  app.add_option("--project", options.project, "Folder for checkpoints and metrics");
  app.add_option("--steps", options.steps, "Optimizer steps")->check(count);
  app.add_option("--batch-size", options.batch_size, "Windows in a micro-batch of a rank")->check(count);
  app.add_option("--accumulation", options.accumulation, "Micro-batches of a rank in a step")->check(count);
  app.add_option("--context", options.model.context, "Context length in bytes")->check(count);
  app.add_option("--width", options.model.width, "Width of the model")->check(count);
  app.add_option("--layers", options.model.layers, "Transformer blocks")->check(count);
  app.add_option("--heads", options.model.heads, "Attention heads; they divide the width")->check(count);
  app.add_option("--lr", options.learning_rate, "Peak learning rate")->check(number);
  app.add_option("--warmup", options.warmup, "Steps until the peak learning rate")->check(count_or_none);
  app.add_option("--clip", options.max_grad_norm, "Maximum norm of the gradients")->check(number);
  app.add_option("--seed", options.seed, "Seed of the parameters and the order of the text");
  app.add_option("--precision", precision, "Forward precision")->check(CLI::IsMember({"no", "bf16", "fp16"}));
  app.add_option("--log-every", options.log_every, "Steps; 0: never")->check(count_or_none);
  app.add_option("--evaluate-every", options.evaluate_every, "Steps; 0: never")->check(count_or_none);
  app.add_option("--save-every", options.save_every, "Steps between saves; 0: one at the end")->check(count_or_none);
  app.add_option("--keep-last", options.keep_last, "Checkpoints to keep, in addition to the best one")->check(count);
  app.add_option("--patience", options.patience, "Evaluations without progress that end the run; 0: never")
      ->check(count_or_none);
  app.add_option("--ema", options.ema, "Decay of averaged weights; 0: none")->check(CLI::Range(0.0, 0.999999, "DECAY"));
  app.add_flag("--resume", options.resume, "Resume from the newest checkpoint, if there is one");
  app.add_flag("--tensorboard", options.tensorboard, "Also write TensorBoard event files");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw tutti::UsageError(error.what());
    app.exit(error);
    return std::nullopt;
  }
  if (options.model.width % options.model.heads != 0) {
    throw tutti::UsageError("--heads " + std::to_string(options.model.heads) + " does not divide --width " +
                            std::to_string(options.model.width));
  }
  options.warmup = std::min(options.warmup, options.steps);
  options.model.feed_forward = 4 * options.model.width;
  options.precision = *tutti::parse_precision(precision);
  return options;
}

}  // namespace gpt
