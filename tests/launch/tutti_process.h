#pragma once
// The command `tutti` as a child of a test: its output, its end, and what it leaves behind. Each wait has a deadline.
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
  int exit_code = -1;  ///< 128 + signal when a signal ended it
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

  /// Reads output until the text is there, and returns what stands behind it in its line.
  std::string wait_for_line(const std::string& text);
  void send(int signal) const;
  pid_t pid() const { return pid_; }
  /// Reads output for at most so long; true when it has ended. For tests that strike at random moments.
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

/// Runs `tutti` with the arguments that `words` makes of a port that was free just before, and again with another
/// if another process has taken it since. The port and what became of it.
std::pair<std::string, Finished> run_with_a_free_port(
    const std::function<std::vector<std::string>(const std::string& port)>& words);

/// The folder of the commands is in PATH as long as it lives, for functions that look for them there.
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

/// The processes that `pid` has started and that still run.
std::vector<pid_t> children_of(pid_t pid);

/// True if the process has exited, or exits before the deadline.
bool exits_soon(pid_t pid);

bool contains(const std::string& text, const std::string& part);
int lines_with(const std::string& text, const std::string& part);

}  // namespace tutti::test
