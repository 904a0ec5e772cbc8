#pragma once
// `tutti inspect`.
#include <string>
#include <vector>

namespace tutti {

/// Returns the exit code for the whole program. Throws UsageError.
int run_inspect_command(const std::vector<std::string>& words);

}  // namespace tutti
