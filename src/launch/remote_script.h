#pragma once
// The shell script for a host. It is passed on standard input, so that no variable appears in a list of processes.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launch/rank_variables.h"
#include "tutti/launch/launch.h"

namespace tutti {

/// Quotes any text as one word for a POSIX shell.
std::string shell_quoted(std::string_view word);

/// The script changes to `folder`, sets `variables` except those of a login or of a shell, and executes
/// `tutti launch` for node `node` of the job. Without a master_port, node 0 chooses both ports and announces them.
std::string remote_script(const LaunchOptions& job, int node, const std::string& tutti, const std::string& folder,
                          const Variables& variables);

/// The ports that node 0 announces.
struct JobPorts {
  std::uint16_t master;  ///< MASTER_PORT
  std::uint16_t coordinator;
};

/// Parses the announcement of node 0; nullopt for other lines.
std::optional<JobPorts> announced_ports(std::string_view line);
std::string port_announcement(const JobPorts& ports);

}  // namespace tutti
