#include "sync/orchestrate.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "command/anonymous_file.h"
#include "command/child_process.h"
#include "command/launched.h"
#include "report/report.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

Place place_of(const SyncOptions& options) {
  return {.ranks = options.ranks, .nodes = options.nodes, .rate = options.rate};
}

/// Runs `program` with the arguments of the work and returns the results of its rank 0.
Results take(const SyncOptions& options, Words program, int repeats) {
  const AnonymousFile file;
  program.insert(program.end(), {"--results", file.path()});
  run_ranks(place_of(options), std::move(program), work_arguments(options, repeats));
  return read_results(file.path());
}

Results take_cpp(const SyncOptions& options) {
  Words program{own_program(), "sync"};
  if (!options.peers) program.emplace_back("--no-peers");
  return take(options, program, options.repeats);
}

Results take_python(const SyncOptions& options, int repeats) {
  const auto script = fs::path(own_program()).parent_path() / "bench" / "sync_table.py";
  auto results = take(options, {options.python, script.string()}, repeats);
  for (auto& row : results.rows) row.own_processes = true;
  return results;
}

void check_python(const std::string& python) {
  if (python.empty()) return;
  if (fs::is_directory(python) || ::access(python.c_str(), X_OK) != 0) {
    throw UsageError("--python " + python + " is not a program: give the path of a Python, with its folder");
  }
  constexpr const char* imports = "try:\n  import torch, accelerate\nexcept ImportError:\n  raise SystemExit(1)";
  if (run_program({python, "-c", imports}) != 0) {
    throw UsageError("--python " + python + " has no PyTorch or no Accelerate: ./dev peers makes one with both");
  }
}

Results take_all(const SyncOptions& options) {
  if (options.python.empty()) return take_cpp(options);
  // Python runs before and after the other systems, so that a change of the machine's speed shows in their spread.
  const int after = options.repeats / 2;
  const auto python = take_python(options, options.repeats - after);
  auto results = take_cpp(options);
  merge(results, python);
  if (after > 0) merge(results, take_python(options, after));
  return results;
}

}  // namespace

int orchestrate(const SyncOptions& options) {
  check_python(options.python);
  const auto machine = describe_machine();
  try {
    return report(take_all(options), options, machine, describe_gpt(options));
  } catch (const PartFailed& part) {
    if (part.code != nodes_impossible || options.nodes == 1) return part.code;
    // nodes.sh printed the reason. Scripts that read the file find an empty list of rows.
    if (!options.json.empty()) write_json({}, options, machine);
    return 0;
  }
}

}  // namespace tutti::bench
