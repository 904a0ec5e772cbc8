#pragma once
// A Python process that runs commands from its standard input. It uses no CPU time between commands.
#include <sys/types.h>

#include <string>
#include <vector>

namespace tutti::bench {

/// Throws UsageError unless `python` is a program that can import `modules`, such as "torch, accelerate".
void check_python(const std::string& python, const std::string& modules);

class PythonPeer {
 public:
  /// Starts `command`, whose first word is a path. The process is killed if this process exits.
  explicit PythonPeer(std::vector<std::string> command);
  /// Kills the process if finish() was not called.
  ~PythonPeer();
  PythonPeer(const PythonPeer&) = delete;
  PythonPeer& operator=(const PythonPeer&) = delete;

  /// Sends a line and returns the line of the answer. Throws std::runtime_error if the process exits instead.
  std::string ask(const std::string& line);
  /// Closes its standard input and waits for its exit. Throws std::runtime_error if the exit code is not 0.
  void finish();

 private:
  pid_t child_ = -1;
  int requests_ = -1;
  int answers_ = -1;
};

}  // namespace tutti::bench
