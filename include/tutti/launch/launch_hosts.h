#pragma once
// Starts one job on several hosts: `tutti launch` on each of them, through ssh.
#include <string>
#include <vector>

#include "tutti/launch/launch.h"

namespace tutti {

/// A host and the ranks that it gets.
struct HostSlots {
  std::string host;  ///< as ssh takes it
  int slots = 1;     ///< ranks on it

  bool operator==(const HostSlots&) const = default;
};

/// Reads a hostfile: a line `host slots=N`, `host:N`, or `host` (default_slots ranks) for each host; `#` begins a
/// comment. `name` is for messages. Throws UsageError naming the line that is wrong, and where there is no host or
/// hosts differ in slots (ranks are numbered by equal nodes).
std::vector<HostSlots> read_hostfile(const std::string& name, const std::string& text, int default_slots);

/// What `tutti launch --hostfile` is told.
struct HostLaunchOptions {
  /// The first one is node 0.
  std::vector<HostSlots> hosts{};
  /// Called as WORDS... HOST /bin/sh, with a script on its standard input; words are separated by blanks.
  std::string ssh = "ssh -o BatchMode=yes";
  /// ranks_per_node, num_nodes and node_rank follow from the hosts. Unset master_port: a free one of the first host. An
  /// empty master_addr: the first host's name.
  LaunchOptions job{};
};

/// Runs job.command on all hosts, in the same working directory and with this process's variables (but for those of a
/// login, such as HOME and DISPLAY), with the tutti that stands at the same path. Each line of output behind "[HOST] ".
/// Returns 0 when all hosts ended with 0, else the exit code of the host that failed first, after naming it. The other
/// hosts then end as ranks do in launch(). SIGINT and SIGTERM end all hosts; a host whose connection is cut ends its
/// ranks. Throws UsageError for options that cannot be honoured.
int launch_on_hosts(const HostLaunchOptions& options);

}  // namespace tutti
