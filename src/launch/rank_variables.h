#pragma once
// The environment variables that a rank starts with: torchrun's names, so that programs written for torchrun run too.
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/launch/launch.h"

namespace tutti {

/// What is the same for all ranks that this launcher starts.
struct JobVariables {
  std::uint16_t master_port = 0;
  /// Where the socket listens that rank 0 inherits. Unset: ranks meet at master_port, which nobody holds.
  std::optional<std::uint16_t> store_port{};
  std::string run_id;
  int threads_per_rank = 1;
  int restart_count = 0;
  /// Where ranks keep their flight records. Empty: they keep none.
  std::filesystem::path record_folder{};
};

using Variables = std::map<std::string, std::string>;

/// The variables of this process.
Variables current_variables();

/// `inherited` with the variables of the rank with this local rank. `master_listen_fd` is for the rank that inherits
/// the store's socket.
Variables rank_variables(const LaunchOptions& options, const JobVariables& job, int local_rank,
                         std::optional<int> master_listen_fd, Variables inherited);

/// "NAME=value" strings, as execve takes them.
std::vector<std::string> environment_block(const Variables& variables);

/// Cores that this process may run on.
int allowed_cores();

}  // namespace tutti
