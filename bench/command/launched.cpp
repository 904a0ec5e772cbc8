#include "command/launched.h"

#include <filesystem>

#include "command/anonymous_file.h"
#include "command/child_process.h"
#include "report/statistics.h"

namespace tutti::bench {

namespace {

std::filesystem::path own_folder() {
  return std::filesystem::path(own_program()).parent_path();
}

std::vector<std::string> joined(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<std::string> on_nodes(const Place& place, const std::string& launcher,
                                  const std::vector<std::string>& program) {
  return joined({script("nodes.sh"), std::to_string(place.nodes), place.rate, std::to_string(place.ranks / place.nodes),
                 launcher},
                program);
}

}  // namespace

std::string describe(const Place& place) {
  const auto ranks = counted(place.ranks, "rank") + " on " + counted(place.nodes, "node");
  return place.nodes == 1 || place.rate == "none" ? ranks : ranks + " at " + place.rate;
}

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

std::string script(const std::string& name) {
  return own_folder() / "bench" / name;
}

void run_ranks(const Place& place, std::vector<std::string> program, const std::vector<std::string>& arguments) {
  program = joined(std::move(program), arguments);
  if (const int code = run_program(launched(place, program), variables_of(place)); code != 0) throw Exit{code};
}

Results take_results(const Place& place, std::vector<std::string> program, const std::vector<std::string>& arguments,
                     const std::string& json) try {
  const AnonymousFile file;
  program.insert(program.end(), {"--results", file.path()});
  run_ranks(place, std::move(program), arguments);
  return read_results(file.path());
} catch (const Exit& exit) {
  if (exit.code != nodes_impossible || place.nodes == 1) throw;
  if (!json.empty()) write_file(json, "[]\n");  // nodes.sh printed the reason
  throw Exit{0};
}

std::vector<std::string> launched(const Place& place, const std::vector<std::string>& program) {
  const std::string tutti = own_folder() / "tutti";
  if (place.nodes > 1) return on_nodes(place, tutti, program);
  return joined({tutti, "launch", "-n", std::to_string(place.ranks), "--"}, program);
}

std::vector<std::string> launched_by_mpi(const Place& place, const std::string& mpiexec,
                                         const std::vector<std::string>& program) {
  if (place.nodes > 1) return on_nodes(place, mpiexec, program);
  return joined({mpiexec, "-n", std::to_string(place.ranks)}, program);
}

std::map<std::string, std::string> variables_of(const Place& place) {
  // Otherwise LibTorch warns of every connection whose peer address has no host name.
  std::map<std::string, std::string> variables{{"OMP_NUM_THREADS", "1"}, {"TORCH_CPP_LOG_LEVEL", "ERROR"}};
  // Otherwise Gloo resolves the machine's host name, which may not resolve.
  if (place.nodes == 1) variables["GLOO_SOCKET_IFNAME"] = "lo";
  return variables;
}

}  // namespace tutti::bench
