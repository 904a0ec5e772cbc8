#pragma once
// What `tutti bench nlp` was asked for.
#include <optional>
#include <string>
#include <vector>

#include "sync/options.h"

namespace tutti::bench {

/// As for `tutti bench sync`, with other defaults: `width` is the hidden size of BERT, `context` the tokens of a pair
/// of sentences.
struct NlpOptions : SyncOptions {
  std::string folder;  ///< of the exported model and the batches; ranks get it from the process that started them
};

/// nullopt when help was asked for (and printed). Throws UsageError.
std::optional<NlpOptions> parse_nlp_options(const std::vector<std::string>& words, bool under_launcher);

/// The model, a line of Markdown.
std::string describe_bert(const NlpOptions& options);

}  // namespace tutti::bench
