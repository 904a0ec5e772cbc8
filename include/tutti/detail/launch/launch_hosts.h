#pragma once
// Starts one job on several hosts: runs `tutti launch` on each of them through ssh.
#include <string>
#include <vector>

#include "tutti/launch/launch.h"

namespace tutti {

/// A host and its number of ranks.
struct HostSlots {
  std::string host;  ///< a destination of ssh
  int slots = 1;     ///< number of ranks on the host

  bool operator==(const HostSlots&) const = default;
};

/// Parses a hostfile: a line `host slots=N`, `host:N`, or `host` (default_slots ranks) for each host; `#` begins a
/// comment. `name` is the file's name in messages. Throws UsageError naming an invalid line, for an empty list, and if
/// hosts have different numbers of slots, because all nodes must have equally many ranks.
std::vector<HostSlots> read_hostfile(const std::string& name, const std::string& text, int default_slots);

/// Options of launch_on_hosts(): those of `tutti launch --hostfile`.
struct HostLaunchOptions {
  /// The first host is node 0.
  std::vector<HostSlots> hosts{};
  /// Called as WORDS... HOST /bin/sh, with a script on standard input. Blanks separate the words.
  std::string ssh = "ssh -o BatchMode=yes";
  /// ranks_per_node, num_nodes and node_rank follow from `hosts`. Unset master_port: a free port of the first host.
  /// Empty master_addr: the name of the first host.
  LaunchOptions job{};
};

/// Runs job.command on all hosts, in the same working directory and with the variables of this process, except those of
/// a login such as HOME and DISPLAY. Each host must have tutti at the same path. Prefixes each line of output with
/// "[HOST] ".
///
/// Returns 0 if all hosts exited with 0. Otherwise names the host that failed first, ends the other hosts as launch()
/// ends ranks, and returns the exit code of the first. job.max_restarts restarts all ranks on all hosts, as launch()
/// does on one node. The signals that launch() forwards end all hosts: their ranks get SIGTERM, and this call waits
/// until they have ended, at most 5 s longer than job.grace. A second SIGINT ends the wait. A host that loses its
/// connection ends its ranks.
/// Throws UsageError for invalid options.
int launch_on_hosts(const HostLaunchOptions& options);

}  // namespace tutti
