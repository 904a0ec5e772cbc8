#pragma once
// One rank: a process group led by `tutti-rank` (cmd/tutti_rank.cpp), which runs the program.
#include <signal.h>
#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launch/exit_event.h"
#include "launch/output.h"

namespace tutti {

/// How a process ended.
struct ExitStatus {
  int code = 0;    ///< exit code
  int signal = 0;  ///< the signal that ended the process, or 0

  bool failed() const { return code != 0 || signal != 0; }
  /// As in a shell: 128 + signal.
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
  std::string describe() const;
};

struct RankCommand {
  std::filesystem::path guard;    ///< tutti-rank
  std::filesystem::path program;  ///< path of the program
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  ///< NAME=value
  std::optional<int> stdin_fd;           ///< unset: /dev/null
  sigset_t signal_mask{};
};

/// Raises this process's limit of descriptors if it is too low for `count` processes. `subject` is what the user asked
/// for. Throws UsageError if the hard limit is too low.
void require_descriptors(const std::string& subject, int count);

/// The constructor starts the process group. The destructor kills its remaining processes.
class RankProcess {
 public:
  RankProcess(int rank, const RankCommand& command, RankOutput output, Sink& out, Sink& err);
  ~RankProcess() { end_group(); }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank() const { return rank_; }
  RankOutput& output() { return output_; }
  const RankOutput& output() const { return output_; }
  /// Becomes readable when the rank has exited.
  int exit_fd() const { return exit_event_->fd(); }
  /// The exit status; nullopt while the process runs. The destructor reaps the process, so that the id of its process
  /// group is not reused before.
  const std::optional<ExitStatus>& poll_exit();
  const std::optional<ExitStatus>& exit_status() const { return exit_status_; }
  /// Sends `signal` to the rank's process group, and to the group that its program leads if it has made one: SIGINT and
  /// SIGTERM to the program alone there.
  void signal_group(int signal) const;

  /// Remembers whether a signal such as SIGSTOP has stopped the program.
  void note_stop();
  bool was_stopped() const { return was_stopped_; }
  /// The process exited after the launcher's own signal.
  void mark_ended_by_launcher() { ended_by_launcher_ = true; }
  bool ended_by_launcher() const { return ended_by_launcher_; }

 private:
  /// Kills its processes and reaps the guard.
  void end_group() const;

  int rank_;
  RankOutput output_;
  pid_t pid_ = -1;
  std::optional<ExitEvent> exit_event_;
  std::optional<ExitStatus> exit_status_;
  bool was_stopped_ = false;
  bool ended_by_launcher_ = false;
};

}  // namespace tutti
