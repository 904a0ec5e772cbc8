#pragma once
// The launchers that read_environment knows: whose variables are set, and whose decide.
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/environment.h"

namespace tutti {

/// Environment::master_addr of a job on one node whose launcher gives no address: "local:NAME". Rank 0 listens on a
/// free loopback port and tells it to the other ranks of its node under NAME, which no other job on the node has.
inline constexpr std::string_view local_store_scheme = "local:";

/// A launcher whose variables are set.
struct DetectedLauncher {
  std::string name;                    ///< as in Environment::launcher
  std::vector<std::string> variables;  ///< NAME=value
  bool is_selected = false;
  std::string ignored_because{};  ///< empty for the one that won
};

/// The launchers that are seen in these variables, in the order in which read_environment asks them. At most one wins.
/// Does not throw: whether what they say makes sense is for read_environment to tell.
std::vector<DetectedLauncher> detected_launchers(const VariableLookup& lookup);

/// Looks variables of this process up.
std::optional<std::string> process_variable(const std::string& name);

}  // namespace tutti
