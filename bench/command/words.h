#pragma once
// The words after a benchmark's name, as its options.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tutti::bench {

/// Parses `words` into the options of `app`, whose name is the command's. Returns false where they asked for help,
/// which is printed. Throws UsageError.
bool parse_words(CLI::App& app, const std::vector<std::string>& words);

/// Throws UsageError where one of `options` was given to a rank that a launcher has started.
void refuse_under_launcher(bool under_launcher, const std::vector<CLI::Option*>& options);

}  // namespace tutti::bench
