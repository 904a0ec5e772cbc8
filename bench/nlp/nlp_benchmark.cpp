#include "nlp/nlp_benchmark.h"

#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "command/anonymous_file.h"
#include "command/child_process.h"
#include "command/launched.h"
#include "nlp/options.h"
#include "nlp/rank.h"
#include "report/report.h"
#include "tutti/core/environment.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// A temporary folder. The destructor removes it.
class Scratch {
 public:
  Scratch() {
    std::string name = fs::temp_directory_path() / "tutti-bench-nlp-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw UsageError("cannot make a folder in " + name + ": set TMPDIR");
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string path() const { return path_; }

 private:
  fs::path path_;
};

void check_python(const std::string& python) {
  if (fs::is_directory(python) || ::access(python.c_str(), X_OK) != 0) {
    throw UsageError("--python " + python + " is not a program: give the path of a Python, with its folder");
  }
  constexpr const char* imports =
      "try:\n  import torch, accelerate, transformers, torch_tutti\nexcept ImportError as error:\n  raise "
      "SystemExit(str(error))";
  if (run_program({python, "-c", imports}) != 0) {
    throw UsageError("--python " + python +
                     " needs PyTorch, Accelerate, transformers and torch_tutti: ./dev nlp has a Python that has them");
  }
}

int orchestrate(const NlpOptions& options) {
  check_python(options.python);
  const auto machine = describe_machine();
  const Scratch scratch;
  const Place place{.ranks = options.ranks, .nodes = options.nodes, .rate = options.rate};
  const auto work = work_arguments(options, options.repeats);

  Words exporting{options.python, python_script(), "export", scratch.path(), "--ranks", std::to_string(options.ranks)};
  const auto shapes = model_arguments(options);
  std::cerr << "Python is exporting BERT\n";
  exporting.insert(exporting.end(), shapes.begin(), shapes.end());
  if (const int code = run_program(exporting); code != 0) return code;

  std::cerr << "starting the ranks, each with two Python processes\n";
  const AnonymousFile file;
  Words program{own_program(), "nlp", "--python", options.python, "--folder", scratch.path(), "--results", file.path()};
  program.insert(program.end(), work.begin(), work.end());
  const int code = run_program(launched(place, program), variables_of(place));
  if (code == nodes_impossible && options.nodes > 1) {
    // nodes.sh printed the reason. Scripts that read the file find an empty list of rows.
    if (!options.json.empty()) write_json({}, options, machine);
    return 0;
  }
  return code != 0 ? code : report(read_results(file.path()), options, machine, describe_bert(options));
}

}  // namespace

int run_nlp_benchmark(const std::vector<std::string>& words) {
  const auto environment = read_environment();
  const bool under_launcher = environment.launcher != "none";
  const auto options = parse_nlp_options(words, under_launcher);
  if (!options) return 0;
  return under_launcher ? run_nlp_rank(*options, environment) : orchestrate(*options);
}

}  // namespace tutti::bench
