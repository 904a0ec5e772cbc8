#pragma once
// The programs that stand next to `tutti`: commands that need more than it links.
#include <string>
#include <vector>

namespace tutti {

/// Whether there is such a program: not every installation holds the benchmarks.
bool has_sibling(const std::string& name);

/// Replaces this process by the program `name`. Throws UsageError when it is not there or cannot be run.
[[noreturn]] void become_sibling(const std::string& name, std::vector<std::string> words);

}  // namespace tutti
