#pragma once
// Which options and combinations of options are valid. No I/O.
#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

/// True if fragments are exchanged separately, or results are applied late or mixed with local parameters.
bool streams(const LocalSgdAlgorithmOptions& options);

/// Throws UsageError for invalid values and combinations.
void check_options(const LocalSgdAlgorithmOptions& options);

}  // namespace tutti::local_sgd
