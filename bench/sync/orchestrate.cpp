#include "sync/orchestrate.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>

#include "command/child_process.h"
#include "report/report.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

namespace fs = std::filesystem;

constexpr int two_nodes_impossible = 77;  // two_nodes.sh's

/// A folder that is gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    auto name = (fs::temp_directory_path() / "tutti-bench.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(),
                              "cannot make a folder in " + fs::temp_directory_path().string());
    }
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Ends the whole benchmark with the exit code of a part of it.
struct PartFailed {
  int code;
};

fs::path own_program() {
  return fs::read_symlink("/proc/self/exe");
}

using Words = std::vector<std::string>;

/// `program` as all ranks of the benchmark.
Words launched(const SyncOptions& options, const Words& program) {
  const auto folder = own_program().parent_path();
  const auto tutti = (folder / "tutti").string();
  const auto ranks_per_node = std::to_string(options.ranks / options.nodes);
  Words command = options.nodes == 1
                      ? Words{tutti, "launch", "-n", ranks_per_node, "--"}
                      : Words{(folder / "bench" / "two_nodes.sh").string(), options.rate, ranks_per_node, tutti};
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

std::map<std::string, std::string> variables_of(const SyncOptions& options) {
  // LibTorch would warn of every connection that the machine has no name for its other end.
  std::map<std::string, std::string> variables{{"OMP_NUM_THREADS", "1"}, {"TORCH_CPP_LOG_LEVEL", "ERROR"}};
  // Otherwise Gloo looks for the machine's name, which need not lead anywhere.
  if (options.nodes == 1) variables["GLOO_SOCKET_IFNAME"] = "lo";
  return variables;
}

class SyncRun {
 public:
  explicit SyncRun(const SyncOptions& options) : options_(options) {}

  /// Runs `program` with the work's arguments and returns what its rank 0 leaves.
  Results take(Words program, int repeats) {
    const auto file = (folder_.path() / "results.json").string();
    const auto arguments = work_arguments(options_, repeats);
    program.insert(program.end(), arguments.begin(), arguments.end());
    program.insert(program.end(), {"--results", file});
    if (const int code = run_program(launched(options_, program), variables_of(options_)); code != 0) {
      throw PartFailed{code};
    }
    auto results = read_results(file);
    fs::remove(file);
    return results;
  }

  Results take_cpp() { return take({own_program().string(), "sync"}, options_.repeats); }

  Results take_python(int repeats) {
    const auto script = own_program().parent_path() / "bench" / "sync_table.py";
    auto results = take({options_.python, script.string()}, repeats);
    for (auto& row : results.rows) row.own_processes = true;
    return results;
  }

 private:
  const SyncOptions& options_;
  TemporaryFolder folder_;
};

void check_python(const std::string& python) {
  if (python.empty()) return;
  if (fs::is_directory(python) || ::access(python.c_str(), X_OK) != 0) {
    throw UsageError("--python " + python + " is not a program: give the path of a Python, with its folder");
  }
  constexpr const char* imports = "try:\n  import torch, accelerate\nexcept ImportError:\n  raise SystemExit(1)";
  if (run_program({python, "-c", imports}) != 0) {
    throw UsageError("--python " + python + " has no PyTorch or no Accelerate: ./dev peers makes one that does");
  }
}

Results take_all(const SyncOptions& options) {
  SyncRun run(options);
  if (options.python.empty()) return run.take_cpp();
  // Python's runs stand on both sides of the others, so that a machine that changes its pace shows in their spread.
  const int after = options.repeats / 2;
  const auto python = run.take_python(options.repeats - after);
  auto results = run.take_cpp();
  merge(results, python);
  if (after > 0) merge(results, run.take_python(after));
  return results;
}

}  // namespace

int orchestrate(const SyncOptions& options) {
  check_python(options.python);
  const auto machine = describe_machine();
  try {
    return report(take_all(options), options, machine);
  } catch (const PartFailed& part) {
    if (part.code != two_nodes_impossible || options.nodes == 1) return part.code;
    // two_nodes.sh has said why. A script that reads the file finds no rows rather than no file.
    if (!options.json.empty()) write_json({}, options, machine);
    return 0;
  }
}

}  // namespace tutti::bench
