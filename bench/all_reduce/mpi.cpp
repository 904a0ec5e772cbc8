#include "all_reduce/mpi.h"

#include <filesystem>
#include <fstream>

#include "all_reduce/reducers.h"
#include "command/anonymous_file.h"
#include "command/child_process.h"
#include "command/launched.h"

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

AllReduceResults take_mpi(const AllReduceOptions& options, int ranks, int repeats) {
  AllReduceResults results;
  if (*mpiexec == '\0') {
    results.notes.push_back(
        "no MPI column: the build found no MPI (tools/packages.sh libopenmpi-dev openmpi-bin, then build again)");
    return results;
  }
  const AnonymousFile file;
  const std::string program = std::filesystem::path(own_program()).parent_path() / "tutti-bench-mpi";
  const int code = run_program({mpiexec, "-n", std::to_string(ranks), program, file.path(), std::to_string(repeats),
                                std::to_string(options.milliseconds), joined(options.sizes), joined(options.dtypes)},
                               variables());
  if (code != 0) {
    results.notes.push_back("no MPI column for " + std::to_string(ranks) + " ranks: " + mpiexec + " ended with code " +
                            std::to_string(code));
    return results;
  }
  std::ifstream in(file.path());
  std::string version;
  std::getline(in, version);
  results.notes.push_back("MPI: " + version + ", in separate processes before and after the other systems");
  AllReduceRow cell{.system = mpi, .ranks = ranks};
  for (double microseconds = 0; in >> cell.bytes >> cell.dtype >> microseconds;) {
    row_of(results, cell).microseconds.push_back(microseconds);
  }
  return results;
}

}  // namespace tutti::bench
