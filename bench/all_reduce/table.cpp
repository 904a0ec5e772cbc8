#include "all_reduce/table.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <set>

#include "all_reduce/reducers.h"
#include "report/statistics.h"

namespace tutti::bench {
namespace {

/// The columns after those of tutti.
constexpr std::array last_columns{c10d_gloo, mpi, plain_socket, bare_sum};

std::string size_text(std::int64_t bytes) {
  if (bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
  if (bytes % (1 << 10) == 0) return std::to_string(bytes >> 10) + " KiB";
  return std::to_string(bytes) + " B";
}

Labels labels_of(const std::string& figure, const std::string& system, int ranks, const std::string& dtype,
                 std::int64_t bytes) {
  return {{"system", system},
          {"ranks", ranks},
          {"bytes", bytes},
          {"dtype", dtype},
          {"own_processes", system == mpi},
          {"figure", figure},
          {"unit", figure == "time" ? "us" : "ns/B"}};
}

/// Returns the systems in the order of the columns.
std::vector<std::string> systems_of(const Results& results) {
  std::vector<std::string> systems;
  for (const auto& system : results.values_of("system")) systems.push_back(system.get<std::string>());
  std::ranges::stable_sort(systems, {}, [](const std::string& system) {
    const auto* const found = std::ranges::find(last_columns, system);
    return found == last_columns.end() ? -1 : found - last_columns.begin();
  });
  return systems;
}

/// The repeats of a figure for a system, in one row of a table.
using Values = std::function<std::vector<double>(const std::string& figure, const std::string& system)>;
/// The text in the column of a system; empty: none.
using Cell = std::function<std::string(const Values& values, const std::string& system)>;

void add_table(Report& report, const Results& results, int ranks, const std::string& dtype, const Cell& cell_of) {
  std::set<std::int64_t> sizes;
  for (const auto& size : results.values_of("bytes")) sizes.insert(size.get<std::int64_t>());
  std::vector<std::string> titles{counted(ranks, "rank") + ", " + dtype};
  std::vector<std::vector<std::string>> rows;
  for (const auto bytes : sizes) rows.push_back({size_text(bytes)});
  for (const auto& system : systems_of(results)) {
    std::vector<std::string> column;
    for (const auto bytes : sizes) {
      const auto values = [&](const std::string& figure, const std::string& of) {
        return results.values(labels_of(figure, of, ranks, dtype, bytes));
      };
      column.push_back(cell_of(values, system));
    }
    if (std::ranges::all_of(column, &std::string::empty)) continue;
    titles.push_back(system);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].push_back(column[i]);
  }
  report.add_table(titles);
  for (const auto& row : rows) report.add_row(row);
}

void add_tables(Report& report, const Results& results, const std::string& text, const Cell& cell_of) {
  report.add_text(text);
  for (const auto& ranks : results.values_of("ranks")) {
    for (const auto& dtype : results.values_of("dtype")) {
      add_table(report, results, ranks.get<int>(), dtype.get<std::string>(), cell_of);
    }
  }
}

/// Returns the cell of a figure, with its ratio to that of `base`.
Cell figure_cell(const std::string& figure, const std::string& base) {
  return [=](const Values& values, const std::string& system) {
    const auto of_base = values(figure, base);
    return cell(values(figure, system), three_digits, of_base.empty() ? 0 : statistics_of(of_base).median);
  };
}

/// The ratio of the times of tutti and of Gloo in each repeat.
std::string ratio_cell(const Values& values, const std::string& system) {
  if (std::ranges::find(last_columns, system) != last_columns.end()) return "";
  std::vector<double> ratios;
  std::ranges::transform(values("time", system), values("time", c10d_gloo), std::back_inserter(ratios),
                         std::divides<>());
  return cell(ratios, 2);
}

void add_notes(Report& report, const Results& results, const AllReduceOptions& options) {
  report.add_note(
      "tutti gradients: start_all_reduce, reduce to the mean, finish, in memory from allocate(), as in a reducer. "
      "tutti all_reduce and tutti over a backend: any memory, with the call signature that user calls exchange");
  report.add_note(
      "tutti gradients copy nothing between ranks that share memory: the sum is made in place. All other systems take "
      "any memory, so compare them with tutti all_reduce");
  report.add_note(
      "plain socket: a non-blocking TCP connection between two ranks; each rank sends the parts of the other ranks, "
      "adds what it receives, and sends its sum back");
  if (results.find({{"system", bare_sum}}) != nullptr) {
    report.add_note(
        "bare sum: the additions alone. One thread for each rank sums a slice of all buffers in place and waits for no "
        "other thread. It is not a bound: other threads and other memory may be faster");
  }
  report.add_note("the time is the slowest rank's, over the calls that take " + std::to_string(options.milliseconds) +
                  " ms; the systems alternate");
  report.add_note(
      "CPU: user and system time of all threads of a rank's process. The kernel's work in interrupts is not in it");
  for (const auto& note : results.notes) report.add_note(note);
}

}  // namespace

void add_cost(Results& results, const std::string& system, int ranks, const std::string& dtype, std::int64_t bytes,
              const Cost& cost) {
  results.row(labels_of("time", system, ranks, dtype, bytes)).values.push_back(cost.microseconds);
  if (system == bare_sum) return;
  results.row(labels_of("CPU", system, ranks, dtype, bytes)).values.push_back(cost.cpu_per_byte);
}

int report_all_reduce(Report& report, const Results& results, const AllReduceOptions& options) {
  const std::string median = "median of " + std::to_string(options.repeats);
  const Place& place = options.place;
  const std::string where = place.nodes == 1       ? "one node"
                            : place.rate == "none" ? "two nodes without a limit of rate"
                                                   : "two nodes at " + place.rate;
  add_tables(report, results,
             "Microseconds for one sum over the ranks of " + where + ", in place: " + median + ", × that of " +
                 plain_socket + ", (min-max).",
             figure_cell("time", plain_socket));
  if (results.find({{"system", c10d_gloo}}) != nullptr) {
    add_tables(report, results, "Time / that of c10d Gloo: median of the ratios of the repeats (min-max).", ratio_cell);
  }
  add_tables(
      report, results,
      "CPU of a rank, in nanoseconds for each byte of its tensor: " + median + ", × that of c10d Gloo, (min-max).",
      figure_cell("CPU", c10d_gloo));
  add_notes(report, results, options);
  report.add_json(results, {{"nodes", place.nodes}, {"rate", place.rate}});
  return report.finish(options.json);
}

}  // namespace tutti::bench
