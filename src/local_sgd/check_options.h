#pragma once
// Which combinations of options mean something. Pure.
#include "tutti/local_sgd/local_update_options.h"

namespace tutti::local_sgd {

/// Whether fragments travel on their own, or mix with what a rank has.
bool streams(const LocalUpdateOptions& options);

/// Throws UsageError for values and combinations that cannot be honoured.
void check_options(const LocalUpdateOptions& options);

}  // namespace tutti::local_sgd
