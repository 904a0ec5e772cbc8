#pragma once
// Runs Python scripts as child processes of a test.
#include <optional>
#include <string>
#include <vector>

namespace tutti::test {

/// The Python that the variable names; nullopt if the variable is not set.
std::optional<std::string> python_from(const char* variable);

struct ScriptResult {
  int exit_code = -1;  ///< -1 if a signal ended it
  std::string output;  ///< standard output and error
};

/// Runs `script` with `arguments` to its end. Starts it without fork, which LibTorch's threads would not survive.
ScriptResult run_python(const std::string& python, const std::string& script,
                        const std::vector<std::string>& arguments);

}  // namespace tutti::test
