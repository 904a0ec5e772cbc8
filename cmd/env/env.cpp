// `tutti env`: what a program started here would find. A program of its own, because it asks LibTorch.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <iostream>
#include <string>

#include "comm/bootstrap.h"
#include "command_line.h"
#include "core/host_name.h"
#include "core/job_secret.h"
#include "core/launchers.h"
#include "core/port_range.h"
#include "core/socket.h"
#include "run_main.h"
#include "tutti/core/environment.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/detail/comm/backend_status.h"

namespace {

void print(const std::string& what, const std::string& value) {
  constexpr std::size_t column = 16;
  std::cout << what << std::string(what.size() < column ? column - what.size() : 1, ' ') << value << '\n';
}

std::string of(int number, int size) {
  return std::to_string(number) + " of " + std::to_string(size);
}

void print_launchers() {
  const auto seen = tutti::detected_launchers(&tutti::process_variable);
  for (const auto& launcher : seen) {
    std::string text = launcher.name + (launcher.is_selected ? ":" : " (set, but " + launcher.ignored_because + "):");
    for (const auto& variable : launcher.variables) text += " " + variable;
    print(launcher.is_selected ? "launcher" : "also seen", text);
  }
}

std::string master_of(const tutti::Environment& environment) {
  if (environment.world_size == 1) return "not needed by one rank";
  if (environment.master_addr.starts_with(tutti::local_coordinator_scheme)) {
    return "a socket of this user on this node (job " +
           environment.master_addr.substr(tutti::local_coordinator_scheme.size()) + ")";
  }
  const std::string text = tutti::format_address(environment.master_addr, environment.master_port);
  if (environment.agent_store) return text + ", a store of the launcher's agent, at which rank 0 publishes its address";
  return text +
         (environment.launcher_coordinator ? ", the coordinator in the launcher" : ", the coordinator in rank 0");
}

// Where it comes from, never what it is.
std::string secret_of(const tutti::Environment& environment) {
  if (environment.master_addr.starts_with(tutti::local_coordinator_scheme))
    return "not needed: the socket is of one user";
  const auto secret = tutti::read_job_secret(&tutti::process_variable);
  if (secret) return "from " + secret->source();
  if (environment.agent_store) return "rank 0 makes one and publishes it at the agent's store";
  return "none: any process that reaches the master port can join (TUTTI_JOB_SECRET_FILE)";
}

void print_place(const tutti::Environment& environment) {
  if (environment.launcher == "none") print("launcher", "none: one process");
  print("rank", of(environment.rank, environment.world_size));
  print("local rank", of(environment.local_rank, environment.local_world_size));
  print("node", of(environment.node_rank, environment.num_nodes) + ", " + tutti::host_name());
  print("master", master_of(environment));
  if (environment.world_size > 1) print("secret", secret_of(environment));
  const bool encrypts = tutti::read_encryption(&tutti::process_variable);
  print("encryption", encrypts ? "between ranks" : "to the coordinator, where there is a secret (TUTTI_ENCRYPTION)");
  print("ports", tutti::describe_ports(tutti::read_port_range(&tutti::process_variable)));
  if (environment.restart_count > 0) print("restart", std::to_string(environment.restart_count));
}

/// Throws UsageError for a variable that the Communicator or the Logger of a program would refuse.
void check_variables(const tutti::Environment& environment) {
  tutti::CommunicatorOptions options;
  (void)tutti::comm::check_options(options);
  if (environment.world_size > 1) (void)tutti::comm::encryption_secret(options);
  (void)tutti::Logger(0);
}

/// The reason without its details, which the error of a program that asks for the backend has.
std::string first_clause(const std::string& reason) {
  std::size_t end = reason.size();
  for (const char* separator : {": ", " (", ". "}) end = std::min(end, reason.find(separator));
  return reason.substr(0, end);
}

void print_machine() {
  print("LibTorch", TORCH_VERSION);
  for (const auto& backend : tutti::backend_statuses()) {
    print("backend", backend.name + (backend.usable ? ": yes" : ": no, " + first_clause(backend.reason)));
  }
  print("processor", at::get_cpu_capability() + ", " + std::to_string(at::get_num_threads()) + " threads");
  print("CUDA",
        at::hasCUDA() ? "yes" : "no: this program was linked against LibTorch's CPU libraries, or finds no GPU");
}

/// Returns 2 if the launcher's variables contradict each other, or if a program would refuse a variable.
int print_all() {
  int code = 0;
  try {
    print_launchers();
    const tutti::Environment environment = tutti::read_environment();
    print_place(environment);
    check_variables(environment);
  } catch (const tutti::UsageError& error) {
    print("error", error.what());
    code = tutti::usage_exit_code;
  }
  print_machine();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Prints what a program that uses tutti finds when it is started here: the launcher whose variables decide, this "
      "process's place among the ranks, LibTorch, backends, processor.");
  app.name("tutti env");
  app.footer(
      "Start it as the program is started, for example with mpirun -n 2 tutti env.\n"
      "Exit code: 2 where the variables make no sense, else 0.");
  return tutti::run_main([&] { return tutti::parse_command_line(app, {argv + 1, argv + argc}) ? print_all() : 0; });
}
