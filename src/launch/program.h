#pragma once
// Finding the executables that a launch needs.
#include <filesystem>
#include <string>

namespace tutti {

/// The executable that `name` means: a path if it holds a slash, else looked up in PATH, else next to the running
/// executable. Throws UsageError saying where was looked when there is none.
std::filesystem::path find_program(const std::string& name);

/// `tutti-rank`, which guards one rank: next to the running executable, else in PATH. Throws UsageError.
std::filesystem::path find_rank_guard();

}  // namespace tutti
