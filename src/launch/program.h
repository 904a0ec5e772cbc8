#pragma once
// Finds the executables of a launch.
#include <filesystem>
#include <string>

namespace tutti {

/// Resolves `name`: a path if it holds a slash, else looked up in PATH, then next to the running executable. Throws
/// UsageError, naming the places searched, if there is none.
std::filesystem::path find_program(const std::string& name);

/// Finds `tutti-rank`, the guard process: next to the running executable, else in PATH. Throws UsageError.
std::filesystem::path find_rank_guard();

}  // namespace tutti
