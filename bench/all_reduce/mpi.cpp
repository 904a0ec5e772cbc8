#include "all_reduce/mpi.h"

#include <filesystem>
#include <fstream>

#include "all_reduce/reducers.h"
#include "all_reduce/table.h"
#include "command/anonymous_file.h"
#include "command/child_process.h"

namespace tutti::bench {
namespace {

#ifdef TUTTI_BENCH_MPIEXEC
constexpr const char* mpiexec = TUTTI_BENCH_MPIEXEC;
#else
constexpr const char* mpiexec = "";
#endif

/// Open MPI requires these in containers and with more ranks than cores. Other MPI implementations ignore them.
const std::map<std::string, std::string>& variables() {
  static const std::map<std::string, std::string> variables{{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                            {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                                            {"OMPI_MCA_rmaps_base_oversubscribe", "1"}};
  return variables;
}

}  // namespace

Results take_mpi(const AllReduceOptions& options, const Place& place, int repeats) {
  Results results;
  if (*mpiexec == '\0') {
    results.notes.push_back(
        "no MPI column: the build found no MPI (tools/packages.sh libopenmpi-dev openmpi-bin, then build again)");
    return results;
  }
  const AnonymousFile file;
  const std::string program = std::filesystem::path(own_program()).parent_path() / "tutti-bench-mpi";
  const int code =
      run_program(launched_by_mpi(place, mpiexec,
                                  {program, "--results", file.path(), "--repeats", std::to_string(repeats),
                                   "--milliseconds", std::to_string(options.milliseconds), "--sizes",
                                   CLI::detail::join(options.sizes), "--dtypes", CLI::detail::join(options.dtypes)}),
                  variables());
  if (code != 0) {
    results.notes.push_back("no MPI column for " + describe(place) + ": " + mpiexec + " ended with code " +
                            std::to_string(code));
    return results;
  }
  std::ifstream in(file.path());
  std::string version;
  std::getline(in, version);
  const char* over = place.nodes > 1 ? " over TCP" : "";
  results.notes.push_back("MPI: " + version + over + ", in separate processes before and after the other systems");
  std::int64_t bytes = 0;
  std::string dtype;
  for (Cost cost; in >> bytes >> dtype >> cost.microseconds >> cost.cpu_per_byte;) {
    add_cost(results, mpi, place.ranks, dtype, bytes, cost);
  }
  return results;
}

}  // namespace tutti::bench
