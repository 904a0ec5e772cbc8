#pragma once
// The environment variables of a rank. They have torchrun's names, so programs for torchrun run unchanged.
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/launch/launch.h"

namespace tutti {

/// Values that are equal for all ranks of this launcher.
struct JobVariables {
  std::uint16_t master_port = 0;
  /// The port of the coordinator that node 0's launcher runs. Unset: rank 0 runs it, at master_port.
  std::optional<std::uint16_t> coordinator_port{};
  /// A secret that the launcher has made; unset if the ranks read one themselves.
  std::optional<std::string> secret{};
  std::string run_id;
  int threads_per_rank = 1;
  int restart_count = 0;
  /// The folder of the flight records. Empty: ranks keep none.
  std::filesystem::path record_folder{};
};

using Variables = std::map<std::string, std::string>;

/// The variables of this process.
Variables current_variables();

/// Returns `inherited` plus the variables of the rank `local_rank`.
Variables rank_variables(const LaunchOptions& options, const JobVariables& job, int local_rank, Variables inherited);

/// "NAME=value" strings for execve.
std::vector<std::string> environment_block(const Variables& variables);

/// The number of cores that this process may run on.
int allowed_cores();

}  // namespace tutti
