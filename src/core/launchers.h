#pragma once
// The launchers that read_environment supports: those whose variables are set, and the one that is selected.
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/environment.h"

namespace tutti {

/// The prefix of Environment::master_addr for a job on one node without an address: "local:NAME". Rank 0 listens on a
/// free loopback port and publishes it on the node under NAME, which is unique to the job.
inline constexpr std::string_view local_coordinator_scheme = "local:";

/// A launcher whose variables are set.
struct DetectedLauncher {
  std::string name;                    ///< as in Environment::launcher
  std::vector<std::string> variables;  ///< NAME=value
  bool is_selected = false;
  std::string ignored_because{};  ///< empty for the selected launcher
};

/// The launchers whose variables are set, in the order in which read_environment tries them. At most one is selected.
/// Does not validate the values and does not throw; read_environment does.
std::vector<DetectedLauncher> detected_launchers(const VariableLookup& lookup);

/// Reads the variables of this process.
std::optional<std::string> process_variable(const std::string& name);

}  // namespace tutti
