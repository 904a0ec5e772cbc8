#pragma once
// Runs example programs in a shell.
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

namespace tutti::test {

/// The exit code of bench/nodes.sh on a machine that cannot create namespaces.
inline constexpr int nodes_impossible = 77;

/// The result of a shell command.
struct Ran {
  int exit_code = -1;
  std::string output;
};

/// Runs a shell command and reads its standard output.
inline Ran run(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen");
  Ran finished;
  std::array<char, 4096> buffer;
  while (const auto count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    finished.output.append(buffer.data(), count);
  const int status = ::pclose(pipe);
  finished.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return finished;
}

/// Expects the exit code, and as the only output one line on standard error that contains `part`.
inline void expect_refusal(const std::string& command, int exit_code, const std::string& part) {
  const auto finished = run(command + " 2>&1");
  EXPECT_EQ(finished.exit_code, exit_code) << command;
  EXPECT_EQ(std::count(finished.output.begin(), finished.output.end(), '\n'), 1) << finished.output;
  EXPECT_NE(finished.output.find(part), std::string::npos) << part << " is not in: " << finished.output;
}

/// Returns the last line that contains `text`, from `text` on.
inline std::string from_last(const std::string& text, const std::string& output) {
  const auto begin = output.rfind(text);
  return begin == std::string::npos ? "" : output.substr(begin, output.find('\n', begin) - begin);
}

}  // namespace tutti::test
