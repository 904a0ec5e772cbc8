#pragma once
// Slurm's compressed lists.
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// "gpu1,node[01-03,07]-ib" is gpu1, node01-ib, node02-ib, node03-ib, node07-ib. Throws UsageError naming `variable`.
std::vector<std::string> expand_nodelist(const std::string& variable, std::string_view list);

/// "4(x2),1" is 4, 4, 1. Throws UsageError naming `variable`.
std::vector<int> expand_counts(const std::string& variable, std::string_view counts);

}  // namespace tutti
