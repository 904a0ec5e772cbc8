#pragma once
#include <string>

namespace tutti {

/// The id of the process that started the ranks of this job on this node: the nearest ancestor without `variable`,
/// which the launcher sets for its ranks. Shells between the launcher and a rank inherit `variable`, so they are
/// skipped.
std::string launcher_process(const std::string& variable);

}  // namespace tutti
