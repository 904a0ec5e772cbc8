#pragma once
// One rank of `tutti bench nlp`.
#include <string>
#include <vector>

#include "nlp/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Starts its Pythons, joins the others and takes the figures with them; rank 0 leaves them in options.results. Returns
/// the exit code.
int run_nlp_rank(const NlpOptions& options, const Environment& environment);

/// The path of nlp_peer.py, and what it has to know of the work.
std::string python_script();
std::vector<std::string> model_arguments(const NlpOptions& options);

}  // namespace tutti::bench
