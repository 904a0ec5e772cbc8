#pragma once
// Parses the command lines of `tutti` and of the programs behind it.
#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "tutti/core/error.h"

namespace tutti {

/// Parses `words` into the options of `app`, whose name is the command's. Returns false after --help, which it prints.
/// Throws UsageError.
inline bool parse_command_line(CLI::App& app, const std::vector<std::string>& words) {
  const std::string command = app.get_name();
  std::vector<const char*> arguments{command.c_str()};
  for (const auto& word : words) arguments.push_back(word.c_str());
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
    return true;
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + ": see '" + command + " --help'");
  }
}

}  // namespace tutti
