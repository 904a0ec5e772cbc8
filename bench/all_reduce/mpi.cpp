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

Results take_mpi(const AllReduceOptions& options, int ranks, int repeats) {
  Results results;
  if (*mpiexec == '\0') {
    results.notes.push_back(
        "no MPI column: the build found no MPI (tools/packages.sh libopenmpi-dev openmpi-bin, then build again)");
    return results;
  }
  const AnonymousFile file;
  const std::string program = std::filesystem::path(own_program()).parent_path() / "tutti-bench-mpi";
  const int code =
      run_program({mpiexec, "-n", std::to_string(ranks), program, "--results", file.path(), "--repeats",
                   std::to_string(repeats), "--milliseconds", std::to_string(options.milliseconds), "--sizes",
                   CLI::detail::join(options.sizes), "--dtypes", CLI::detail::join(options.dtypes)},
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
  std::int64_t bytes = 0;
  std::string dtype;
  for (double microseconds = 0; in >> bytes >> dtype >> microseconds;) {
    results.row(all_reduce_labels(mpi, ranks, dtype, bytes)).values.push_back(microseconds);
  }
  return results;
}

}  // namespace tutti::bench
