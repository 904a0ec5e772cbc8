#pragma once
// Which combinations of options mean something. Pure.
#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

/// Whether fragments are exchanged separately, or mix with what a rank has.
bool streams(const LocalSgdAlgorithmOptions& options);

/// Throws UsageError for values and combinations that cannot be honoured.
void check_options(const LocalSgdAlgorithmOptions& options);

}  // namespace tutti::local_sgd
