#include "command/words.h"

#include <iostream>

#include "tutti/core/error.h"

namespace tutti::bench {

bool parse_words(CLI::App& app, const std::vector<std::string>& words) {
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

void refuse_under_launcher(bool under_launcher, const std::vector<CLI::Option*>& options) {
  for (const auto* option : options) {
    if (under_launcher && option->count() > 0) {
      throw UsageError(option->get_name() + " is not allowed on a rank that a launcher started: remove it");
    }
  }
}

}  // namespace tutti::bench
