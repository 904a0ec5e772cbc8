// `tutti report`: a page over runs that a JsonlTracker wrote. A program of its own, so that `tutti` itself stays small.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "command_line.h"
#include "run_main.h"
#include "tutti/core/error.h"
#include "tutti/detail/tracking/report.h"

namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> runs{};
  std::string output{};
  std::string title{};
};

/// Next to the first run: in its folder.
fs::path default_output(const fs::path& run) {
  return (fs::is_directory(run) ? run : run.parent_path()) / "report.html";
}

/// Throws UsageError if the page would replace a run.
void refuse_input(const fs::path& file, const std::vector<fs::path>& runs) {
  for (const auto& run : runs) {
    std::error_code missing;
    if (!fs::equivalent(file, fs::is_directory(run) ? run / "metrics.jsonl" : run, missing)) continue;
    throw tutti::UsageError("the page cannot replace the run " + file.string() + ": choose another file with -o");
  }
}

/// Writes a file beside `file` and renames it, so that a failure leaves an earlier page as it was. A pipe or device is
/// written itself.
void write(const fs::path& file, const std::string& page) {
  std::error_code error;
  const bool is_special = fs::exists(file, error) && !fs::is_regular_file(file, error);
  const fs::path target = is_special ? file : fs::weakly_canonical(file, error);
  const fs::path part = is_special ? file : fs::path(target.string() + ".part");
  std::ofstream stream(part, std::ios::binary);
  stream << page << std::flush;
  const bool is_written = static_cast<bool>(stream);
  stream.close();
  error.clear();
  if (is_written && !is_special) fs::rename(part, target, error);
  if (is_written && !error) return;
  std::error_code ignored;
  if (!is_special) fs::remove(part, ignored);
  throw tutti::UsageError("cannot write " + file.string() + ": choose another place with -o");
}

void run(const Options& options) {
  const std::vector<fs::path> paths(options.runs.begin(), options.runs.end());
  const auto page = tutti::render_report(paths, options.title);
  const fs::path file = options.output.empty() ? default_output(paths.front()) : fs::path(options.output);
  refuse_input(file, paths);
  write(file, page);
  std::cout << "The report is in " << file.string() << ": open it in a browser.\n";
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Makes one HTML page with the curves of one or more runs. It needs no network to be read.");
  app.name("tutti report");
  app.add_option("RUN", options.runs, "A run's .jsonl file, or a folder that holds metrics.jsonl; several are overlaid")
      ->required();
  app.add_option("-o,--output", options.output, "The page [report.html next to the first run]");
  app.add_option("--title", options.title, "The page's heading [the runs' names]");
  return tutti::run_main([&] {
    if (tutti::parse_command_line(app, {argv + 1, argv + argc})) run(options);
    return 0;
  });
}
