#include "comm/transport/mpi/mpi_environment.h"

#include <dlfcn.h>

#include <array>
#include <optional>
#include <utility>

#include "comm/transport/mpi/orphaned_requests.h"
#include "core/launchers.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr const char* module_name = "libtutti_mpi.so";

const MpiApi& load_module() {
  // Global: MPI's own plug-ins look for its symbols.
  void* const module = ::dlopen(module_name, RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) {
    throw UsageError(std::string("tutti was built without MPI, or its module is not beside it: ") + ::dlerror() +
                     ". Install an MPI (Debian: libopenmpi-dev openmpi-bin), build and install tutti again, and let "
                     "LD_LIBRARY_PATH name the folder of " +
                     module_name + " where the program does not find it");
  }
  using Entry = const MpiApi* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(module, mpi_entry));
  if (entry == nullptr || entry()->version != MpiApi::this_version) {
    throw UsageError(std::string(module_name) + " belongs to another version of tutti: install both together");
  }
  return *entry();
}

}  // namespace

const MpiApi& mpi_api() {
  static const MpiApi& api = load_module();
  return api;
}

std::string mpi_unavailable_reason(const VariableLookup& lookup, int size) {
  // Who started the process, and where it says of how many.
  constexpr std::array launchers{std::pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                                 std::pair("PMI_RANK", "PMI_SIZE"), std::pair("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
                                 std::pair("PMIX_RANK", "")};
  for (const auto& [rank, size_variable] : launchers) {
    const bool has_size = *size_variable != '\0';
    const auto size_value = has_size ? lookup(size_variable) : std::nullopt;
    if (!lookup(rank) || (has_size && !size_value)) continue;  // a batch script has a rank, and no size of a step
    if (!size_value || *size_value == std::to_string(size)) return "";
    return std::string(size_variable) + " is " + *size_value + ", but the job has " + std::to_string(size) +
           " ranks: let mpirun or srun start them, not a launcher inside of it";
  }
  return "no mpirun or srun started this process (none of OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID and PMIX_RANK "
         "is set): run mpirun -n " +
         (size > 1 ? std::to_string(size) : "N") + " PROGRAM";
}

void require_mpi(int size) {
  if (mpi_api().is_initialized()) return;
  if (const auto error = mpi_unavailable_reason(&process_variable, size); !error.empty()) throw UsageError(error);
}

MpiWorld init_mpi() {
  const auto& api = mpi_api();
  MpiWorld world_info;
  const char* const error = api.init(&world_info);
  if (world_info.initialized_here) finalize_mpi_at_exit();
  if (error != nullptr) throw UsageError(error);
  return world_info;
}

}  // namespace tutti::comm
