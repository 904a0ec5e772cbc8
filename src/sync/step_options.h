#pragma once
// What a step depends on besides gradients, for a comparison of ranks: the options of parameter groups and the limits
// of clipping. No I/O.
#include <cstdint>
#include <string>

#include "tutti/detail/sync/reducer.h"

namespace tutti::sync {

/// A hash of all values, rounded to float. Allocates nothing.
std::uint64_t hash_of(const StepOptions& options);

/// The values as text, one a line.
std::string describe(const StepOptions& options);

}  // namespace tutti::sync
