#pragma once
// The command line of a benchmark.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "command/launched.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// The arguments after a benchmark's name, and the variables of the launcher.
struct Invocation {
  std::vector<std::string> words;
  Environment environment;

  /// True if this process is one of the ranks.
  bool under_launcher() const { return environment.launcher != "none"; }
};

/// The options of every benchmark.
struct CommonOptions {
  std::string json;     ///< file for the rows; empty: none
  std::string results;  ///< of a rank: the file in which it writes for the parent process; empty: it reports
};

/// Parses the arguments of one benchmark. `--help` shows the default of every option.
class ArgumentParser : public CLI::App {
 public:
  ArgumentParser(const std::string& benchmark, const std::string& description, CommonOptions& options);

  /// Adds an option for a number of at least 1.
  template <typename Number>
  CLI::Option* add_count(const std::string& name, Number& value, const std::string& text) {
    return add_option(name, value, text)->check(CLI::Range(1, 1'000'000'000, "POSITIVE"));
  }

  /// Adds --ranks, --nodes and --rate, which are errors on a rank that another program started.
  void add_place(Place& place);
  /// Adds --nodes and --rate alone.
  void add_nodes(Place& place);
  /// Makes `options` errors on a rank that another program started.
  void refuse_for_ranks(const std::vector<CLI::Option*>& options);

  /// Throws UsageError; throws Exit after --help, which it prints.
  void parse_words(const Invocation& invocation);

  CLI::Option* json_option() const { return json_; }

 private:
  CommonOptions& options_;
  CLI::Option* json_;
  Place* place_ = nullptr;
  std::vector<CLI::Option*> refused_{};
};

/// Throws UsageError if the benchmarks' GPT, which has 4 attention heads, cannot have this width.
void check_gpt_width(std::int64_t width);

}  // namespace tutti::bench
