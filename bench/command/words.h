#pragma once
// Parses the arguments after a benchmark's name.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tutti::bench {

/// Parses `words` into the options of `app`, whose name is the command's. Returns false after --help, which it prints.
/// Throws UsageError.
bool parse_words(CLI::App& app, const std::vector<std::string>& words);

/// Throws UsageError if one of `options` was given to a rank that a launcher started.
void refuse_under_launcher(bool under_launcher, const std::vector<CLI::Option*>& options);

}  // namespace tutti::bench
