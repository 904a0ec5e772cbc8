#pragma once
// The options of `tutti bench nlp`.
#include <optional>
#include <string>
#include <vector>

#include "sync/options.h"

namespace tutti::bench {

/// The options of `tutti bench sync` with other defaults. `width` is the hidden size of BERT, `context` the number of
/// tokens in a pair of sentences.
struct NlpOptions : SyncOptions {
  std::string folder;  ///< folder of the exported model and the batches, which the parent process gives to the ranks
};

/// Returns nullopt after --help. Throws UsageError.
std::optional<NlpOptions> parse_nlp_options(const std::vector<std::string>& words, bool under_launcher);

/// Describes the model in a line of Markdown.
std::string describe_bert(const NlpOptions& options);

}  // namespace tutti::bench
