#include "all_reduce/mpi.h"
#include "all_reduce/rank.h"
#include "all_reduce/table.h"
#include "benchmarks.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

/// A multiple of the width of every dtype.
constexpr std::int64_t size_unit = 8;

AllReduceOptions parse_all_reduce_options(const Invocation& invocation) {
  AllReduceOptions options;
  ArgumentParser parser(
      "all-reduce", "Times a sum over the ranks of one or two nodes: tutti, Gloo, MPI, and plain sockets.", options);
  parser.refuse_for_ranks(
      {parser.add_option("--ranks", options.ranks, "Numbers of ranks")->delimiter(',')->check(CLI::Range(1, 1024))});
  parser.add_nodes(options.place);
  parser.add_option("--sizes", options.sizes, "Sizes of the tensor, such as 4KiB,25MiB")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  parser.add_option("--dtypes", options.dtypes, "Dtypes of the tensor")
      ->delimiter(',')
      ->check(CLI::IsMember({"float32", "float64", "bfloat16", "float16"}));
  parser.add_option("--backends", options.backends, "Backends of tutti; auto: the default one")->delimiter(',');
  parser.add_count("--repeats", options.repeats, "Repeats of each measurement");
  parser.add_count("--milliseconds", options.milliseconds, "Least duration of a repeat");
  parser.add_flag_callback(
      "--no-mpi", [&options] { options.mpi = false; }, "Do not measure MPI");
  parser.parse_words(invocation);
  for (const auto size : options.sizes) {
    if (size % size_unit != 0) throw UsageError("--sizes " + std::to_string(size) + " is not a multiple of 8 bytes");
  }
  for (const int ranks : options.ranks) {
    if (ranks % options.place.nodes == 0) continue;
    throw UsageError("--ranks " + std::to_string(ranks) + " do not divide evenly among --nodes " +
                     std::to_string(options.place.nodes));
  }
  return options;
}

Results take_all(const AllReduceOptions& options, const std::vector<std::string>& words) {
  Results results;
  Place place = options.place;
  for (const int ranks : options.ranks) {
    place.ranks = ranks;
    // MPI runs before and after the other systems, so that a change of the machine's speed shows in their spread.
    const int after = options.repeats / 2;
    if (options.mpi) results.merge(take_mpi(options, place, options.repeats - after));
    results.merge(take_results(place, {own_program(), "all-reduce"}, words, options.json));
    if (options.mpi && after > 0) results.merge(take_mpi(options, place, after));
  }
  return results;
}

}  // namespace

int run_all_reduce_benchmark(const Invocation& invocation) {
  const auto options = parse_all_reduce_options(invocation);
  if (invocation.under_launcher()) return run_all_reduce_rank(options, invocation.environment);
  Report report;
  return report_all_reduce(report, take_all(options, invocation.words), options);
}

}  // namespace tutti::bench
