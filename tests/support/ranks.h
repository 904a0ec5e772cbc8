#pragma once
// Ranks for tests: as threads of this process (run_thread_ranks in tutti/comm/thread_ranks.h), or as processes.
//
// A test binary linked with this library starts itself once per rank. A rank runs a RankProgram, which is defined at
// namespace scope so that the started process finds the program by name:
//
//   const RankProgram adds_up("adds_up", [] {
//     auto communicator = Communicator::connect(read_environment());
//     ...EXPECT_EQ...
//   });
//   TEST(Gloo, AddsUp) { expect_success(run_processes(adds_up, 2)); }
//
// A rank fails (exit code 1) when its program throws or an EXPECT in it fails.
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tutti/comm/thread_ranks.h"
#include "tutti/core/environment.h"

namespace tutti::test {

class RankProgram {
 public:
  RankProgram(std::string name, std::function<void()> body);
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

struct RankResult {
  int exit_code = -1;  ///< -1 if a signal ended the rank
  int signal = 0;
  bool timed_out = false;  ///< killed at the deadline
  std::string output;      ///< standard output and error
};

struct ProcessOptions {
  std::chrono::seconds deadline{60};
  int num_nodes = 1;  ///< number of simulated nodes
  /// Set in every rank's environment. TUTTI_HEARTBEAT_TIMEOUT and TUTTI_DEADLOCK_TIMEOUT are 2 by default.
  std::map<std::string, std::string> variables = {};
  /// Ranks that are not started.
  std::vector<int> absent = {};
};

/// Running ranks. The destructor kills the ranks that still run. Not thread safe.
class RankProcesses {
 public:
  RankProcesses(const RankProgram& program, int size, ProcessOptions options = {});
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  pid_t pid(int rank) const;
  void send_signal(int rank, int signal) const;
  /// Blocks until every started rank is in wait_for_go(), and then releases them.
  void go();
  /// Blocks until `rank` has stopped itself with SIGSTOP, or has exited.
  void wait_until_stopped(int rank) const;
  /// Blocks until `rank` has written `text`. Returns false if the rank exits or the deadline passes before.
  bool wait_for_output(int rank, const std::string& text);
  /// Blocks until all ranks have exited.
  std::vector<RankResult> wait();

 private:
  struct Process {
    pid_t pid = -1;
    int output = -1;
    bool ended = true;
    RankResult result;
  };

  void start(int rank, int size, const RankProgram& program, const ProcessOptions& options);
  // Reads the output of the ranks and records exits. Waits for a change, at most until the deadline.
  void collect();
  void reap(Process& process);
  void kill_all();
  bool all_ended() const;

  std::vector<Process> processes_;
  std::chrono::steady_clock::time_point deadline_;
  int port_socket_ = -1;
  int port_ = 0;
  pid_t group_ = 0;
};

/// In a rank program: the environment, as if the ranks ran on `num_nodes` nodes.
Environment on_nodes(int num_nodes);

/// In a rank program, before it has started a thread: blocks until RankProcesses::go() is called.
void wait_for_go();

std::vector<RankResult> run_processes(const RankProgram& program, int size, ProcessOptions options = {});

/// Expects exit code 0 of every rank. Prints the output of failed ranks.
void expect_success(const std::vector<RankResult>& results);

}  // namespace tutti::test
