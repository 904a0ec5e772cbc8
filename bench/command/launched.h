#pragma once
// Starts a benchmark's program again as ranks.
#include <map>
#include <string>
#include <vector>

namespace tutti::bench {

struct Place {
  int ranks = 2;  ///< of all nodes
  int nodes = 1;
  std::string rate = "1gbit";  ///< of the link between two nodes
};

/// The exit code of nodes.sh on a machine that cannot make two nodes. nodes.sh prints the reason.
inline constexpr int nodes_impossible = 77;

std::string own_program();

/// Ends the benchmark with the exit code of the part that failed.
struct PartFailed {
  int code;
};

/// Runs `program` with `arguments` as all ranks. Throws PartFailed if a rank fails.
void run_ranks(const Place& place, std::vector<std::string> program, const std::vector<std::string>& arguments);

/// Returns the command that runs `program` as all ranks.
std::vector<std::string> launched(const Place& place, const std::vector<std::string>& program);

/// Returns the environment variables of that command.
std::map<std::string, std::string> variables_of(const Place& place);

}  // namespace tutti::bench
