#include "sync/options.h"

#include "report/statistics.h"

namespace tutti::bench {
namespace {

struct WorkOption {
  const char* name;
  int SyncOptions::*value;
  const char* text;
};

const std::vector<WorkOption> work_options{
    {"--batches", &SyncOptions::batches, "Timed batches"},
    {"--steps", &SyncOptions::steps, "Batches in an optimizer step (gradient accumulation)"},
    {"--batch-size", &SyncOptions::batch_size, "Sequences in a batch of a rank"},
    {"--repeats", &SyncOptions::repeats, "Repeats of each measurement"},
    {"--width", &SyncOptions::width, "Width of the GPT, a multiple of 4"},
    {"--layers", &SyncOptions::layers, "Blocks of the GPT"},
    {"--context", &SyncOptions::context, "Tokens in a sequence"},
    {"--vocabulary", &SyncOptions::vocabulary, "Different tokens"}};

}  // namespace

void add_work_options(ArgumentParser& parser, SyncOptions& options) {
  for (const auto& [name, value, text] : work_options) parser.add_count(name, options.*value, text);
}

std::vector<std::string> work_arguments(const SyncOptions& options, int repeats) {
  SyncOptions work = options;
  work.repeats = repeats;
  std::vector<std::string> words;
  for (const auto& option : work_options) words.insert(words.end(), {option.name, std::to_string(work.*option.value)});
  return words;
}

std::string describe_gpt(const SyncOptions& options) {
  return "GPT of width " + std::to_string(options.width) + ", " + counted(options.layers, "layer") + ", context " +
         std::to_string(options.context) + ", vocabulary " + std::to_string(options.vocabulary);
}

}  // namespace tutti::bench
