#include <iostream>

#include "benchmarks.h"
#include "command/child_process.h"
#include "command/python_peer.h"
#include "nlp/rank.h"
#include "report/statistics.h"
#include "support/temporary_folder.h"
#include "sync/table.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

using Words = std::vector<std::string>;

constexpr int head_width = 64;  ///< of BERT models of all sizes

void add_bert_options(ArgumentParser& parser, NlpOptions& options) {
  options.width = 128;
  options.layers = 4;
  options.vocabulary = 30522;
  options.repeats = 3;
  add_work_options(parser, options);
  parser.get_option("--batch-size")->description("Pairs of sentences in a batch of a rank");
  parser.get_option("--width")->description("Hidden size of BERT; above 64 a multiple of 64");
  parser.get_option("--layers")->description("Layers of BERT");
  parser.get_option("--context")->description("Tokens in a pair")->check(CLI::Range(8, 512));  // positions of BERT
  parser.get_option("--vocabulary")->check(CLI::Range(8, 1 << 20));
}

NlpOptions parse_nlp_options(const Invocation& invocation) {
  NlpOptions options;
  ArgumentParser parser(
      "nlp",
      "BERT for pairs of sentences, exported from Python: trained in C++ by tutti, and in Python by PyTorch's DDP and "
      "by "
      "Accelerate, over Gloo and over the backend tutti. ./dev nlp installs the Python packages and runs it.",
      options);
  parser.add_place(options);
  parser.add_option("--python", options.python, "A Python with PyTorch, Accelerate, transformers and torch_tutti")
      ->required();
  add_bert_options(parser, options);
  parser.add_option("--folder", options.folder)->group("");
  parser.parse_words(invocation);
  if (invocation.under_launcher() != !options.folder.empty()) {
    throw UsageError("the benchmark starts its own ranks: run it without a launcher, with --ranks and --nodes");
  }
  if (options.width > head_width && options.width % head_width != 0) {
    throw UsageError("--width " + std::to_string(options.width) + " is not a multiple of 64, the width of a head");
  }
  return options;
}

std::string describe_bert(const NlpOptions& options) {
  return "transformers' BertForSequenceClassification with random weights, hidden size " +
         std::to_string(options.width) + ", " + counted(options.layers, "layer") + ", " +
         std::to_string(options.context) + " tokens, vocabulary " + std::to_string(options.vocabulary) +
         "; dropout on; AdamW as a loop over parameters, in C++ and in Python; one thread for each rank";
}

void export_bert(const NlpOptions& options, const std::string& folder) {
  std::cerr << "Python is exporting BERT\n";
  Words command{options.python, script("nlp_peer.py"), "export", folder, "--ranks", std::to_string(options.ranks)};
  const auto shapes = model_arguments(options);
  command.insert(command.end(), shapes.begin(), shapes.end());
  if (const int code = run_program(command); code != 0) throw Exit{code};
}

}  // namespace

int run_nlp_benchmark(const Invocation& invocation) {
  const auto options = parse_nlp_options(invocation);
  if (invocation.under_launcher()) return run_nlp_rank(options, invocation.environment);
  check_python(options.python, "torch, accelerate, transformers, torch_tutti");
  Report report;
  const test::TemporaryFolder folder;
  export_bert(options, folder.path());
  std::cerr << "starting the ranks, each with two Python processes\n";
  const auto results =
      take_results(options, {own_program(), "nlp", "--folder", folder.path()}, invocation.words, options.json);
  return report_sync(report, results, options, describe_bert(options));
}

}  // namespace tutti::bench
