#pragma once
// One rank of `tutti bench nlp`.
#include <string>
#include <vector>

#include "nlp/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Starts the Python processes, connects to the other ranks and measures with them. Rank 0 writes the results to
/// options.results. Returns the exit code.
int run_nlp_rank(const NlpOptions& options, const Environment& environment);

/// Returns the arguments of nlp_peer.py for the model and the batches.
std::vector<std::string> model_arguments(const NlpOptions& options);

}  // namespace tutti::bench
