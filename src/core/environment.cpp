#include "tutti/core/environment.h"

#include <array>
#include <cstdlib>

#include "core/launcher_process.h"
#include "core/launcher_variables.h"
#include "core/launchers.h"
#include "core/variables.h"

namespace tutti {
namespace {

struct Launcher {
  std::string name;
  /// The launcher sets both for each rank: its number and the size of its job. Either detects the launcher.
  std::string rank_variable;
  std::vector<std::string> size_variables;
  Environment (*read)(const VariableReader&);
  /// Why the launcher is ignored although it is detected; empty if it is not ignored.
  std::string (*why_not)(const VariableReader&);
};

std::string no_objection(const VariableReader&) {
  return "";
}

/// srun also sets PMI_RANK, for its own PMI; Slurm's variables know more about nodes.
std::string why_no_mpich(const VariableReader& variables) {
  const bool by_hydra = variables.first_set({"MPI_LOCALRANKID", "MPI_LOCALNRANKS"}).has_value();
  const bool by_srun = variables.has("SLURM_PROCID") && why_no_slurm_task(variables).empty();
  return !by_hydra && by_srun ? "srun's own PMI set it" : "";
}

/// In order of precedence. An inner launcher sets torchrun's names, whatever started it.
const std::array<Launcher, 4>& launchers() {
  static const std::array<Launcher, 4> all{{
      {"torchrun", "RANK", {"WORLD_SIZE"}, &read_torchrun, &no_objection},
      {"openmpi", "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"}, &read_openmpi, &no_objection},
      {"mpich", "PMI_RANK", {"PMI_SIZE"}, &read_mpich, &why_no_mpich},
      {"slurm", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, &read_slurm, &why_no_slurm_task},
  }};
  return all;
}

bool is_detected(const Launcher& launcher, const VariableReader& variables) {
  return variables.has(launcher.rank_variable) || variables.first_set(launcher.size_variables);
}

const Launcher* find_selected(const VariableReader& variables) {
  for (const auto& launcher : launchers()) {
    if (is_detected(launcher, variables) && launcher.why_not(variables).empty()) return &launcher;
  }
  return nullptr;
}

}  // namespace

std::vector<DetectedLauncher> detected_launchers(const VariableLookup& lookup) {
  const VariableReader variables(lookup);
  const Launcher* selected = find_selected(variables);
  std::vector<DetectedLauncher> seen;
  for (const auto& launcher : launchers()) {
    if (!is_detected(launcher, variables)) continue;
    DetectedLauncher one{.name = launcher.name, .variables = {}, .is_selected = &launcher == selected};
    if (const auto rank = lookup(launcher.rank_variable)) {
      one.variables.push_back(launcher.rank_variable + "=" + *rank);
    }
    for (const auto& name : launcher.size_variables) {
      if (const auto size = lookup(name)) one.variables.push_back(name + "=" + *size);
    }
    if (!one.is_selected) {
      one.ignored_because = launcher.why_not(variables);
      if (one.ignored_because.empty()) one.ignored_because = selected->name + " takes precedence";
    }
    seen.push_back(std::move(one));
  }
  return seen;
}

Environment read_environment(const VariableLookup& lookup) {
  const VariableReader variables(lookup);
  const Launcher* selected = find_selected(variables);
  return selected == nullptr ? Environment{} : selected->read(variables);
}

std::optional<std::string> process_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Environment read_environment() {
  auto environment = read_environment(&process_variable);
  // If the launcher gives its job no name, its process on this node identifies the job.
  if (environment.master_addr == std::string(local_coordinator_scheme) + environment.launcher) {
    for (const auto& launcher : launchers()) {
      if (launcher.name != environment.launcher) continue;
      environment.master_addr += "-process-" + launcher_process(launcher.rank_variable);
    }
  }
  return environment;
}

}  // namespace tutti
