#include "nlp/options.h"

#include "command/words.h"
#include "report/spread.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

constexpr int at_most = 1 << 20;
constexpr int head_width = 64;  ///< of BERT models of all sizes

void add_place_options(CLI::App& app, NlpOptions& options) {
  app.add_option("--ranks", options.ranks, "Ranks of all nodes")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--nodes", options.nodes, "1, or 2: two network namespaces of this machine (needs root)")
      ->check(CLI::Range(1, 2))
      ->capture_default_str();
  app.add_option("--rate", options.rate, "Rate of the link between two nodes: 1gbit, 100mbit [1gbit]");
  app.add_option("--python", options.python, "A Python with PyTorch, Accelerate, transformers and torch_tutti")
      ->required();
}

void add_work_options(CLI::App& app, NlpOptions& options) {
  const auto number = [&app](const std::string& name, int& value, int least, const std::string& text) {
    app.add_option(name, value, text)->check(CLI::Range(least, at_most))->capture_default_str();
  };
  number("--batches", options.batches, 1, "Timed batches");
  number("--steps", options.steps, 1, "Batches in an optimizer step (gradient accumulation)");
  number("--batch-size", options.batch_size, 1, "Pairs of sentences in a batch of a rank");
  number("--repeats", options.repeats, 1, "Repeats of each measurement");
  number("--width", options.width, 1, "Hidden size of BERT; above 64 a multiple of 64");
  number("--layers", options.layers, 1, "Layers of BERT");
  number("--context", options.context, 8, "Tokens in a pair, at most 512");
  number("--vocabulary", options.vocabulary, 8, "Different tokens");
}

}  // namespace

std::optional<NlpOptions> parse_nlp_options(const std::vector<std::string>& words, bool under_launcher) {
  NlpOptions options;
  options.width = 128;
  options.layers = 4;
  options.vocabulary = 30522;
  options.repeats = 3;
  CLI::App app(
      "BERT for pairs of sentences, exported from Python: trained in C++ by tutti, and in Python by PyTorch's DDP and "
      "by "
      "Accelerate, over Gloo and over the backend tutti. ./dev nlp installs the Python packages and runs it.");
  app.name("tutti bench nlp");
  add_place_options(app, options);
  add_work_options(app, options);
  app.add_option("--json", options.json, "Also write the rows to this file");
  app.add_option("--results", options.results)->group("");
  app.add_option("--folder", options.folder)->group("");

  if (!parse_words(app, words)) return std::nullopt;
  if (under_launcher != !options.folder.empty()) {
    throw UsageError("the benchmark starts its own ranks: run it without a launcher, with --ranks and --nodes");
  }
  if (options.width > head_width && options.width % head_width != 0) {
    throw UsageError("--width " + std::to_string(options.width) + " is not a multiple of 64, the width of a head");
  }
  constexpr int positions = 512;
  if (options.context > positions) {
    throw UsageError("--context " + std::to_string(options.context) + " is more than the 512 positions of BERT");
  }
  if (!under_launcher) check_place(options, app.count("--rate") > 0);
  check_json_file(options.json);
  return options;
}

std::string describe_bert(const NlpOptions& options) {
  return "transformers' BertForSequenceClassification with random weights, hidden size " +
         std::to_string(options.width) + ", " + counted(options.layers, "layer") + ", " +
         std::to_string(options.context) + " tokens, vocabulary " + std::to_string(options.vocabulary) +
         "; dropout on; AdamW as a loop over parameters, in C++ and in Python; one thread for each rank";
}

}  // namespace tutti::bench
