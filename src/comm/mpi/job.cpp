#include "comm/mpi/job.h"

#include <dlfcn.h>

#include <array>
#include <optional>
#include <utility>

#include "comm/mpi/remains.h"
#include "core/launchers.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr const char* module_name = "libtutti_mpi.so";

const MpiFunctions& load_module() {
  // Global: MPI's own plug-ins look for its symbols.
  void* const module = ::dlopen(module_name, RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) {
    throw UsageError(std::string("tutti was built without MPI, or its module is not beside it: ") + ::dlerror() +
                     ". Install an MPI (Debian: libopenmpi-dev openmpi-bin), build and install tutti again, and let "
                     "LD_LIBRARY_PATH name the folder of " +
                     module_name + " where the program does not find it");
  }
  using Entry = const MpiFunctions* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(module, mpi_entry));
  if (entry == nullptr || entry()->version != MpiFunctions::this_version) {
    throw UsageError(std::string(module_name) + " belongs to another version of tutti: install both together");
  }
  return *entry();
}

}  // namespace

const MpiFunctions& mpi_functions() {
  static const MpiFunctions& functions = load_module();
  return functions;
}

std::string why_no_mpi_job(const VariableLookup& lookup, int size) {
  // Who started the process, and where it says of how many.
  constexpr std::array launchers{std::pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                                 std::pair("PMI_RANK", "PMI_SIZE"), std::pair("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
                                 std::pair("PMIX_RANK", "")};
  for (const auto& [rank, sizes] : launchers) {
    const bool says_size = *sizes != '\0';
    const auto told = says_size ? lookup(sizes) : std::nullopt;
    if (!lookup(rank) || (says_size && !told)) continue;  // a batch script has a rank, and no size of a step
    if (!told || *told == std::to_string(size)) return "";
    return std::string(sizes) + " is " + *told + ", but the job has " + std::to_string(size) +
           " ranks: let mpirun or srun start them, not a launcher inside of it";
  }
  return "no mpirun or srun started this process (none of OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID and PMIX_RANK "
         "is set): run mpirun -n " +
         (size > 1 ? std::to_string(size) : "N") + " PROGRAM";
}

void require_mpi_job(int size) {
  if (mpi_functions().initialised()) return;
  if (const auto why = why_no_mpi_job(&process_variable, size); !why.empty()) throw UsageError(why);
}

MpiPlace join_mpi() {
  const auto& functions = mpi_functions();
  MpiPlace place;
  const char* const why = functions.begin(&place);
  if (place.initialised_here) end_mpi_at_exit();
  if (why != nullptr) throw UsageError(why);
  return place;
}

}  // namespace tutti::comm
