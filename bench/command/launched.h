#pragma once
// A benchmark that starts itself again as ranks.
#include <map>
#include <string>
#include <vector>

namespace tutti::bench {

struct Place {
  int ranks = 2;  ///< on all nodes together
  int nodes = 1;
  std::string rate = "1gbit";  ///< of the link between two nodes
};

/// nodes.sh's exit code where this machine cannot make two nodes; it has said why.
inline constexpr int nodes_impossible = 77;

std::string own_program();

/// Ends the whole benchmark with the exit code of a part of it.
struct PartFailed {
  int code;
};

/// Runs `program` with `arguments` as all ranks. Throws PartFailed where they fail.
void run_ranks(const Place& place, std::vector<std::string> program, const std::vector<std::string>& arguments);

/// The command that runs `program` as all ranks.
std::vector<std::string> launched(const Place& place, const std::vector<std::string>& program);

/// What it needs in its environment.
std::map<std::string, std::string> variables_of(const Place& place);

}  // namespace tutti::bench
