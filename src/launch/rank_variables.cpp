#include "launch/rank_variables.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/job_secret.h"
#include "core/launcher_variables.h"
#include "flight/recorder.h"

namespace tutti {

Variables current_variables() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

Variables rank_variables(const LaunchOptions& options, const JobVariables& job, int local_rank, Variables inherited) {
  const auto rank = std::to_string(options.node_rank * options.ranks_per_node + local_rank);
  const auto world_size = std::to_string(options.num_nodes * options.ranks_per_node);
  Variables variables{
      {"RANK", rank},
      {"WORLD_SIZE", world_size},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(options.ranks_per_node)},
      {"GROUP_RANK", std::to_string(options.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(options.num_nodes)},
      {"ROLE_RANK", rank},
      {"ROLE_NAME", "default"},
      {"ROLE_WORLD_SIZE", world_size},
      {"MASTER_ADDR", options.master_addr},
      {"MASTER_PORT", std::to_string(job.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(job.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)},
      {"TORCHELASTIC_RUN_ID", job.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {flight::records_variable, job.record_folder.string()},
  };
  if (job.coordinator_port)
    variables.emplace(coordinator_port_variable, coordinator_port_text(*job.coordinator_port, job.master_port));
  if (job.secret) variables.emplace(secret_variable, *job.secret);
  // Inside a rank of another job, the variable names that job's socket.
  inherited.erase(coordinator_port_variable);
  inherited.emplace("OMP_NUM_THREADS", std::to_string(job.threads_per_rank));
  variables.merge(inherited);  // keeps the values set above
  return variables;
}

std::vector<std::string> environment_block(const Variables& variables) {
  std::vector<std::string> block;
  block.reserve(variables.size());
  for (const auto& [name, value] : variables) block.push_back(std::string(name).append("=").append(value));
  return block;
}

int allowed_cores() {
  std::array<cpu_set_t, 8> cores{};  // one cpu_set_t holds 1024 cores; the call fails on machines with more
  if (::sched_getaffinity(0, sizeof(cores), cores.data()) != 0) return 1;
  int count = 0;
  for (const auto& part : cores) count += CPU_COUNT(&part);
  return std::max(1, count);
}

}  // namespace tutti
