#include "all_reduce/table.h"

#include <array>
#include <set>

#include "all_reduce/reducers.h"
#include "report/statistics.h"

namespace tutti::bench {
namespace {

constexpr std::array columns{tutti_gradients, tutti_all_reduce, tutti_over_gloo, c10d_gloo, mpi, bare_sum};

std::string size_text(std::int64_t bytes) {
  if (bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
  if (bytes % (1 << 10) == 0) return std::to_string(bytes >> 10) + " KiB";
  return std::to_string(bytes) + " B";
}

void add_table(Report& report, const Results& results, int ranks, const std::string& dtype) {
  std::vector<const char*> present;
  std::vector<std::string> titles{counted(ranks, "rank") + ", " + dtype};
  for (const char* column : columns) {
    if (results.find({{"system", column}, {"ranks", ranks}, {"dtype", dtype}}) == nullptr) continue;
    present.push_back(column);
    titles.emplace_back(column);
  }
  report.add_table(titles);
  std::set<std::int64_t> sizes;
  for (const auto& size : results.values_of("bytes")) sizes.insert(size.get<std::int64_t>());
  for (const auto bytes : sizes) {
    const auto values = [&](const char* system) {
      return results.values(all_reduce_labels(system, ranks, dtype, bytes));
    };
    const auto gradients = values(tutti_gradients);
    const double base = gradients.empty() ? 0 : statistics_of(gradients).median;
    std::vector<std::string> cells{size_text(bytes)};
    for (const char* column : present) cells.push_back(cell(values(column), three_digits, base));
    report.add_row(cells);
  }
}

}  // namespace

Labels all_reduce_labels(const std::string& system, int ranks, const std::string& dtype, std::int64_t bytes) {
  return {{"system", system}, {"ranks", ranks}, {"bytes", bytes}, {"dtype", dtype}, {"own_processes", system == mpi}};
}

int report_all_reduce(Report& report, const Results& results, const AllReduceOptions& options) {
  report.add_text("Microseconds for one sum over the ranks of one node, in place: median of " +
                  std::to_string(options.repeats) + ", × that of tutti gradients, (min-max).");
  for (const auto& ranks : results.values_of("ranks")) {
    for (const auto& dtype : results.values_of("dtype")) add_table(report, results, ranks, dtype);
  }
  report.add_note(
      "tutti gradients: start_all_reduce, reduce to the mean, finish, in memory from allocate(), as in a reducer. "
      "tutti "
      "all_reduce: any memory, with the call signature that user calls exchange");
  report.add_note(
      "tutti gradients copy nothing: the sum is made in place, in memory that the ranks share. All other systems take "
      "any memory, so compare them with tutti all_reduce");
  report.add_note(
      "bare sum: the additions alone. One thread for each rank sums a slice of all buffers in place and waits for no "
      "other thread. It is not a bound: other threads and other memory may be faster");
  report.add_note("the time is the slowest rank's, over the calls that take " + std::to_string(options.milliseconds) +
                  " ms; the systems alternate");
  for (const auto& note : results.notes) report.add_note(note);
  report.add_json(results, {{"unit", "us"}});
  return report.finish(options.json);
}

}  // namespace tutti::bench
