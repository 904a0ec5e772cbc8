#include "all_reduce/table.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "all_reduce/reducers.h"
#include "report/machine.h"
#include "report/spread.h"

namespace tutti::bench {
namespace {

constexpr std::array columns{tutti_gradients, tutti_all_reduce, tutti_over_gloo, c10d_gloo, mpi, bare_sum};

const AllReduceRow* find(const AllReduceResults& results, const AllReduceRow& cell) {
  for (const auto& row : results.rows) {
    if (row.system == cell.system && row.ranks == cell.ranks && row.bytes == cell.bytes && row.dtype == cell.dtype) {
      return &row;
    }
  }
  return nullptr;
}

std::string size_text(std::int64_t bytes) {
  if (bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
  if (bytes % (1 << 10) == 0) return std::to_string(bytes >> 10) + " KiB";
  return std::to_string(bytes) + " B";
}

/// Three digits, in microseconds.
std::string time_text(double microseconds) {
  return number(microseconds, microseconds >= 100 ? 0 : microseconds >= 10 ? 1 : 2);
}

std::string cell_text(const AllReduceRow* row, const AllReduceRow* gradients) {
  if (row == nullptr) return "";
  const auto [median, least, most] = spread_of(row->microseconds);
  std::string text = time_text(median);
  if (gradients != nullptr) text += " ×" + number(median / spread_of(gradients->microseconds).median, 2);
  return text.append(" (").append(time_text(least)).append("-").append(time_text(most)).append(")");
}

void write_table(std::ostream& out, const AllReduceResults& results, int ranks, const std::string& dtype) {
  std::vector<const char*> present;
  for (const char* column : columns) {
    const bool any = std::ranges::any_of(results.rows, [&](const AllReduceRow& row) {
      return row.system == column && row.ranks == ranks && row.dtype == dtype;
    });
    if (any) present.push_back(column);
  }
  out << "| " << counted(ranks, "rank") << ", " << dtype << " |";
  for (const char* column : present) out << ' ' << column << " |";
  out << "\n|---|";
  for (std::size_t i = 0; i < present.size(); ++i) out << "---|";
  out << '\n';
  std::set<std::int64_t> sizes;
  for (const auto& row : results.rows) {
    if (row.ranks == ranks && row.dtype == dtype) sizes.insert(row.bytes);
  }
  for (const auto bytes : sizes) {
    const auto row = [&](const char* system) {
      return find(results, {.system = system, .ranks = ranks, .bytes = bytes, .dtype = dtype});
    };
    out << "| " << size_text(bytes) << " |";
    for (const char* column : present) out << ' ' << cell_text(row(column), row(tutti_gradients)) << " |";
    out << '\n';
  }
  out << '\n';
}

std::string markdown(const AllReduceResults& results, const AllReduceOptions& options, const Machine& machine) {
  std::ostringstream out;
  out << "Microseconds for one sum over the ranks of one node, in place: median of " << options.repeats
      << ", × that of tutti gradients, (min-max).\n\n";
  std::vector<std::pair<int, std::string>> tables;
  for (const auto& row : results.rows) {
    const std::pair table(row.ranks, row.dtype);
    if (std::ranges::find(tables, table) == tables.end()) tables.push_back(table);
  }
  for (const auto& [ranks, dtype] : tables) write_table(out, results, ranks, dtype);
  out << "- tutti gradients: start_all_reduce, reduce to the mean, finish, in memory from allocate(), as in a reducer. "
         "tutti all_reduce: any memory, with the call signature that user calls exchange\n"
      << "- tutti gradients copy nothing: the sum is made in place, in memory that the ranks share. All other systems "
         "take any memory, so compare them with tutti all_reduce\n"
      << "- bare sum: the additions alone. One thread for each rank sums a slice of all buffers in place and waits for "
         "no other thread. It is not a bound: other threads and other memory may be faster\n"
      << "- the time is the slowest rank's, over the calls that take " << options.milliseconds
      << " ms; the systems alternate\n";
  for (const auto& note : results.notes) out << "- " << note << '\n';
  out << "- " << describe(machine) << '\n';
  return out.str();
}

std::string json_text(const AllReduceResults& results, const Machine& machine) {
  auto rows = nlohmann::ordered_json::array();
  for (const auto& row : results.rows) {
    const auto [median, least, most] = spread_of(row.microseconds);
    rows.push_back({{"system", row.system},
                    {"ranks", row.ranks},
                    {"bytes", row.bytes},
                    {"dtype", row.dtype},
                    {"median", median},
                    {"min", least},
                    {"max", most},
                    {"unit", "us"},
                    {"repeats", row.microseconds.size()},
                    {"own_processes", row.system == mpi},
                    {"libtorch", machine.libtorch},
                    {"commit", machine.commit}});
  }
  return rows.dump(2) + "\n";
}

}  // namespace

int report(const AllReduceResults& results, const AllReduceOptions& options) {
  const auto machine = describe_machine();
  std::cout << markdown(results, options, machine) << std::flush;
  if (!options.json.empty()) write_file(options.json, json_text(results, machine));
  for (const auto& fault : results.faults) std::cerr << "tutti bench: wrong result: " << fault << '\n';
  return results.faults.empty() ? 0 : 1;
}

}  // namespace tutti::bench
