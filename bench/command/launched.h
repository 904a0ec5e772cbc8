#pragma once
// Starts a benchmark's program again as ranks.
#include <map>
#include <string>
#include <vector>

#include "report/results.h"

namespace tutti::bench {

struct Place {
  int ranks = 2;  ///< of all nodes
  int nodes = 1;
  std::string rate = "1gbit";  ///< of the link between two nodes; "none": no limit
};

/// Returns "2 ranks on 2 nodes at 1gbit".
std::string describe(const Place& place);

/// The exit code of nodes.sh on a machine that cannot make two nodes. nodes.sh prints the reason.
inline constexpr int nodes_impossible = 77;

/// Thrown to end the benchmark with an exit code.
struct Exit {
  int code;
};

std::string own_program();

/// Returns the path of a script of the benchmarks.
std::string script(const std::string& name);

/// Runs `program` with `arguments` as all ranks. Throws Exit if a rank fails.
void run_ranks(const Place& place, std::vector<std::string> program, const std::vector<std::string>& arguments);

/// Runs `program` in the same way, with --results, and returns the results that rank 0 writes. On a machine that cannot
/// make the nodes, writes an empty list of rows to `json` for scripts that read the file, and throws Exit{0}.
Results take_results(const Place& place, std::vector<std::string> program, const std::vector<std::string>& arguments,
                     const std::string& json);

/// Returns the command that runs `program` as all ranks.
std::vector<std::string> launched(const Place& place, const std::vector<std::string>& program);

/// Returns the command that runs `program` as all ranks of an MPI job, started by Open MPI's `mpiexec`.
std::vector<std::string> launched_by_mpi(const Place& place, const std::string& mpiexec,
                                         const std::vector<std::string>& program);

/// Returns the environment variables of that command.
std::map<std::string, std::string> variables_of(const Place& place);

}  // namespace tutti::bench
