#pragma once
// A Python beside this process, which waits at its standard input, without taking time, until it is asked to do
// something.
#include <sys/types.h>

#include <string>
#include <vector>

namespace tutti::bench {

class PythonPeer {
 public:
  /// Starts `command`, whose first word is a path. It ends with this process.
  explicit PythonPeer(std::vector<std::string> command);
  /// Kills it where finish() was not called.
  ~PythonPeer();
  PythonPeer(const PythonPeer&) = delete;
  PythonPeer& operator=(const PythonPeer&) = delete;

  /// Hands it a line and waits for the line that it answers. Throws std::runtime_error where it ends instead.
  std::string ask(const std::string& line);
  /// Tells it that nothing follows, and waits for its end. Throws std::runtime_error where that is no success.
  void finish();

 private:
  pid_t child_ = -1;
  int requests_ = -1;
  int answers_ = -1;
};

}  // namespace tutti::bench
