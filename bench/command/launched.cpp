#include "command/launched.h"

#include <filesystem>

#include "command/child_process.h"

namespace tutti::bench {

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

void run_ranks(const Place& place, std::vector<std::string> program, const std::vector<std::string>& arguments) {
  program.insert(program.end(), arguments.begin(), arguments.end());
  if (const int code = run_program(launched(place, program), variables_of(place)); code != 0) throw PartFailed{code};
}

std::vector<std::string> launched(const Place& place, const std::vector<std::string>& program) {
  const auto folder = std::filesystem::path(own_program()).parent_path();
  const std::string tutti = folder / "tutti";
  const auto ranks_per_node = std::to_string(place.ranks / place.nodes);
  std::vector<std::string> command{folder / "bench" / "nodes.sh", std::to_string(place.nodes), place.rate,
                                   ranks_per_node, tutti};
  if (place.nodes == 1) command = {tutti, "launch", "-n", ranks_per_node, "--"};
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

std::map<std::string, std::string> variables_of(const Place& place) {
  // Otherwise LibTorch warns of every connection whose peer address has no host name.
  std::map<std::string, std::string> variables{{"OMP_NUM_THREADS", "1"}, {"TORCH_CPP_LOG_LEVEL", "ERROR"}};
  // Otherwise Gloo resolves the machine's host name, which may not resolve.
  if (place.nodes == 1) variables["GLOO_SOCKET_IFNAME"] = "lo";
  return variables;
}

}  // namespace tutti::bench
