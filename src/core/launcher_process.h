#pragma once
#include <string>

namespace tutti {

/// The number of the process that started this job's ranks on this node: the nearest ancestor in whose variables
/// `variable` (which the launcher sets for its ranks) is not set. Shells between it and a rank do not count.
std::string launcher_process(const std::string& variable);

}  // namespace tutti
