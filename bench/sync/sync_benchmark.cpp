#include <algorithm>
#include <iterator>
#include <utility>

#include "benchmarks.h"
#include "command/python_peer.h"
#include "sync/mode.h"
#include "sync/rank.h"
#include "sync/table.h"

namespace tutti::bench {
namespace {

SyncOptions parse_sync_options(const Invocation& invocation) {
  SyncOptions options;
  ArgumentParser parser("sync", "Times gradient synchronization under accumulation, in tutti and in other systems.",
                        options);
  parser.add_place(options);
  parser.refuse_for_ranks(
      {parser.add_option("--python", options.python, "A Python with PyTorch and Accelerate; adds rows for both")});
  add_work_options(parser, options);
  parser.add_flag_callback(
      "--no-peers", [&options] { options.peers = false; },
      "Measure only tutti and the loop without communication; c10d::Reducer computes the reference result");
  parser
      .add_option("--systems", options.selection.systems,
                  "Measure only these and the loop without communication, such as \"tutti;c10d::Reducer, fp16 hook\"")
      ->delimiter(';');
  std::vector<std::string> modes;
  std::ranges::transform(all_modes, std::back_inserter(modes), name_of);
  parser.add_option("--modes", options.selection.modes, "Measure only these columns, such as baseline,no_sync")
      ->delimiter(',')
      ->check(CLI::IsMember(modes));
  parser.parse_words(invocation);
  check_gpt_width(options.width);
  return options;
}

Results take_python(const SyncOptions& options, int repeats) {
  return take_results(options, {options.python, script("sync_table.py")}, work_arguments(options, repeats),
                      options.json);
}

Results take_all(const SyncOptions& options, const std::vector<std::string>& words) {
  const auto take_cpp = [&] { return take_results(options, {own_program(), "sync"}, words, options.json); };
  if (options.python.empty()) return take_cpp();
  // Python runs before and after the other systems, so that a change of the machine's speed shows in their spread.
  const int after = options.repeats / 2;
  const auto python = take_python(options, options.repeats - after);
  auto results = take_cpp();
  results.merge(python);
  if (after > 0) results.merge(take_python(options, after));
  return results;
}

}  // namespace

int run_sync_benchmark(const Invocation& invocation) {
  const auto options = parse_sync_options(invocation);
  if (invocation.under_launcher()) return run_sync_rank(options, invocation.environment);
  if (!options.python.empty()) check_python(options.python, "torch, accelerate");
  Report report;
  return report_sync(report, take_all(options, invocation.words), options, describe_sync_model(options));
}

}  // namespace tutti::bench
