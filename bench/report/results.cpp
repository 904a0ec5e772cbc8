#include "report/results.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace tutti::bench {

using nlohmann::json;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void write_results(const std::string& file, const Results& results) {
  auto rows = json::array();
  for (const auto& row : results.rows) {
    rows.push_back(
        {{"system", row.system}, {"mode", row.mode}, {"milliseconds", row.milliseconds}, {"settings", row.settings}});
  }
  std::ofstream out(file);
  out << json{{"rows", rows}, {"gradient_bytes", results.gradient_bytes}, {"faults", results.faults}} << '\n';
  out.close();
  if (!out) throw std::runtime_error("cannot write " + file);
}

Results read_results(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("the ranks wrote no results to " + file);
  try {
    const auto document = json::parse(in);
    Results results{.gradient_bytes = document.at("gradient_bytes"), .faults = document.at("faults")};
    for (const auto& row : document.at("rows")) {
      results.rows.push_back({.system = row.at("system"),
                              .mode = row.at("mode"),
                              .milliseconds = row.at("milliseconds"),
                              .settings = row.at("settings")});
    }
    return results;
  } catch (const json::exception& error) {
    throw std::runtime_error("the results in " + file + " cannot be read: " + error.what());
  }
}

void merge(Results& results, const Results& more) {
  for (const auto& row : more.rows) {
    const auto same = std::ranges::find_if(
        results.rows, [&](const Row& known) { return known.system == row.system && known.mode == row.mode; });
    if (same == results.rows.end()) {
      results.rows.push_back(row);
    } else {
      same->milliseconds.insert(same->milliseconds.end(), row.milliseconds.begin(), row.milliseconds.end());
    }
  }
  results.faults.insert(results.faults.end(), more.faults.begin(), more.faults.end());
  results.gradient_bytes = std::max(results.gradient_bytes, more.gradient_bytes);
}

}  // namespace tutti::bench
