#pragma once
// The options of `tutti bench nlp`.
#include <string>

#include "sync/options.h"

namespace tutti::bench {

/// The options of `tutti bench sync` with other defaults. `width` is the hidden size of BERT, `context` the number of
/// tokens in a pair of sentences.
struct NlpOptions : SyncOptions {
  std::string folder;  ///< folder of the exported model and the batches, which the parent process gives to the ranks
};

}  // namespace tutti::bench
