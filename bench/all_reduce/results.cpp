#include "all_reduce/results.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace tutti::bench {

using nlohmann::json;

AllReduceRow& row_of(AllReduceResults& results, const AllReduceRow& cell) {
  const auto known = std::ranges::find_if(results.rows, [&cell](const AllReduceRow& row) {
    return row.system == cell.system && row.ranks == cell.ranks && row.bytes == cell.bytes && row.dtype == cell.dtype;
  });
  if (known != results.rows.end()) return *known;
  return results.rows.emplace_back(
      AllReduceRow{.system = cell.system, .ranks = cell.ranks, .bytes = cell.bytes, .dtype = cell.dtype});
}

void merge(AllReduceResults& results, const AllReduceResults& more) {
  for (const auto& row : more.rows) {
    auto& times = row_of(results, row).microseconds;
    times.insert(times.end(), row.microseconds.begin(), row.microseconds.end());
  }
  for (const auto& note : more.notes) {
    if (std::ranges::find(results.notes, note) == results.notes.end()) results.notes.push_back(note);
  }
  results.faults.insert(results.faults.end(), more.faults.begin(), more.faults.end());
}

std::string to_text(const AllReduceResults& results) {
  auto rows = json::array();
  for (const auto& row : results.rows) {
    rows.push_back({{"system", row.system},
                    {"ranks", row.ranks},
                    {"bytes", row.bytes},
                    {"dtype", row.dtype},
                    {"microseconds", row.microseconds}});
  }
  return json{{"rows", rows}, {"notes", results.notes}, {"faults", results.faults}}.dump() + "\n";
}

AllReduceResults read_all_reduce_results(const std::string& file) {
  std::ifstream in(file);
  try {
    const auto document = json::parse(in);
    AllReduceResults results{.notes = document.at("notes"), .faults = document.at("faults")};
    for (const auto& row : document.at("rows")) {
      results.rows.push_back({.system = row.at("system"),
                              .ranks = row.at("ranks"),
                              .bytes = row.at("bytes"),
                              .dtype = row.at("dtype"),
                              .microseconds = row.at("microseconds")});
    }
    return results;
  } catch (const json::exception& error) {
    throw std::runtime_error("the results in " + file + " cannot be read: " + error.what());
  }
}

}  // namespace tutti::bench
