#pragma once
// The command `tutti` as a child process of a test: its output, its exit, and its remaining processes. Each wait has a
// deadline.
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.h"

namespace tutti::test {

struct Finished {
  int exit_code = -1;  ///< 128 + signal if a signal ended it
  std::string out;
  std::string err;
};

class TuttiProcess {
 public:
  struct Options {
    std::filesystem::path working_directory = ".";
    std::vector<std::string> variables{};  ///< NAME=value, added to those of the test
  };

  explicit TuttiProcess(const std::vector<std::string>& arguments) : TuttiProcess(arguments, Options{}) {}
  TuttiProcess(const std::vector<std::string>& arguments, const Options& options);
  ~TuttiProcess();  ///< kills it if it still runs
  TuttiProcess(const TuttiProcess&) = delete;
  TuttiProcess& operator=(const TuttiProcess&) = delete;

  /// Reads output until it contains `text`, and returns the rest of that line.
  std::string wait_for_line(const std::string& text);
  void send(int signal) const;
  pid_t pid() const { return pid_; }
  /// Reads output for at most `time`. Returns true if the process has exited.
  bool ends_within(std::chrono::milliseconds time);
  /// Reads all output and waits for the end.
  Finished wait();

 private:
  void read_some();

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  Finished finished_;
};

/// Runs `tutti ARGUMENTS` to its end.
Finished run_tutti(const std::vector<std::string>& arguments);

/// Runs `tutti` with the arguments that `words` returns for a free port. Repeats with another port if another process
/// has taken it. Returns the port and the result.
std::pair<std::string, Finished> run_with_a_free_port(
    const std::function<std::vector<std::string>(const std::string& port)>& words);

/// While the object exists, the folder of the commands is in PATH.
class CommandsInPath {
 public:
  CommandsInPath();
  ~CommandsInPath();
  CommandsInPath(const CommandsInPath&) = delete;
  CommandsInPath& operator=(const CommandsInPath&) = delete;

 private:
  std::string before_;
};

/// The arguments that run a shell script as n ranks.
std::vector<std::string> launch_script(int ranks, const std::string& script, std::vector<std::string> options = {});

/// The running child processes of `pid`.
std::vector<pid_t> children_of(pid_t pid);

/// True if the process has exited, or exits before the deadline.
bool exits_soon(pid_t pid);

bool contains(const std::string& text, const std::string& part);
int lines_with(const std::string& text, const std::string& part);

/// A grace time longer than any test.
inline const std::vector<std::string> long_grace{"--grace", "600"};
inline const std::vector<std::string> short_grace{"--grace", "0.1"};

/// Waits in a shell so that traps run at once, without holding the shell's output.
inline const std::string wait_forever = "sleep 1000 >/dev/null 2>&1 & wait; ";

inline pid_t to_pid(const std::string& text) {
  return static_cast<pid_t>(std::stol(text));
}

}  // namespace tutti::test
