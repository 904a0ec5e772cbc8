#pragma once
// What a host runs: a shell script, given on standard input so that no variable shows in a list of processes.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/rank_variables.h"
#include "tutti/launch/launch.h"

namespace tutti {

/// One word for a POSIX shell, whatever it holds.
std::string shell_quoted(std::string_view word);

/// Goes to `folder`, sets `variables` (but for those that belong to a login or that a shell cannot set), and becomes
/// `tutti` launching the job's node `node`. Without a master_port the first node chooses both ports and announces
/// them.
std::string remote_script(const LaunchOptions& job, int node, const std::string& tutti, const std::string& folder,
                          const Variables& variables);

/// What the first node tells the others of.
struct JobPorts {
  std::uint16_t master;  ///< MASTER_PORT
  std::uint16_t store;   ///< where ranks of tutti meet
};

/// The ports in a line that a first node announces; nullopt for other lines.
std::optional<JobPorts> announced_ports(std::string_view line);
std::string port_announcement(const JobPorts& ports);

}  // namespace tutti
