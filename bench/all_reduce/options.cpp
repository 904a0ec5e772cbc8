#include "all_reduce/options.h"

#include "command/words.h"
#include "report/spread.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

/// A multiple of the width of every dtype.
constexpr std::int64_t size_unit = 8;

}  // namespace

std::optional<AllReduceOptions> parse_all_reduce_options(const std::vector<std::string>& words, bool under_launcher) {
  AllReduceOptions options;
  CLI::App app("Times a sum over the ranks of one node: tutti, Gloo, MPI, and the additions alone.");
  app.name("tutti bench all-reduce");
  app.option_defaults()->always_capture_default();
  const auto count = CLI::Range(1, 1 << 20, "NUMBER");
  auto* ranks =
      app.add_option("--ranks", options.ranks, "Numbers of ranks")->delimiter(',')->check(CLI::Range(1, 1024));
  app.add_option("--sizes", options.sizes, "Sizes of the tensor, such as 4KiB,25MiB")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  app.add_option("--dtypes", options.dtypes, "Dtypes of the tensor")
      ->delimiter(',')
      ->check(CLI::IsMember({"float32", "float64", "bfloat16", "float16"}));
  app.add_option("--repeats", options.repeats, "Repeats of each measurement")->check(count);
  app.add_option("--milliseconds", options.milliseconds, "Least duration of a repeat")->check(count);
  app.add_flag("!--no-mpi", options.mpi, "Do not measure MPI");
  app.add_option("--json", options.json, "Also write the rows to this file");
  app.add_option("--results", options.results)->group("");
  if (!parse_words(app, words)) return std::nullopt;
  refuse_under_launcher(under_launcher, {ranks});
  for (const auto size : options.sizes) {
    if (size % size_unit != 0) throw UsageError("--sizes " + std::to_string(size) + " is not a multiple of 8 bytes");
  }
  check_json_file(options.json);
  return options;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text.append(text.empty() ? "" : ",").append(word);
  return text;
}

std::string joined(const std::vector<std::int64_t>& numbers) {
  std::vector<std::string> words;
  for (const auto number : numbers) words.push_back(std::to_string(number));
  return joined(words);
}

std::vector<std::string> work_arguments(const AllReduceOptions& options) {
  return {"--sizes",   joined(options.sizes),           "--dtypes",       joined(options.dtypes),
          "--repeats", std::to_string(options.repeats), "--milliseconds", std::to_string(options.milliseconds)};
}

}  // namespace tutti::bench
