#include "report/results.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>

namespace tutti::bench {
namespace {

bool has_labels(const Row& row, const Labels& labels) {
  for (const auto& [key, value] : labels.items()) {
    if (!row.labels.contains(key) || row.labels.at(key) != value) return false;
  }
  return true;
}

template <typename Value>
void add_once(std::vector<Value>& values, const Value& value) {
  if (std::ranges::find(values, value) == values.end()) values.push_back(value);
}

/// Returns what `parse` returns. Throws std::runtime_error with the name of the file if the JSON is not valid.
template <typename Parse>
auto parsed(const std::string& file, const Parse& parse) {
  std::ifstream in(file);
  try {
    return parse(in);
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error("the results in " + file + " cannot be read: " + error.what());
  }
}

}  // namespace

const Row* Results::find(const Labels& labels) const {
  const auto found = std::ranges::find_if(rows, [&](const Row& row) { return has_labels(row, labels); });
  return found == rows.end() ? nullptr : &*found;
}

std::vector<double> Results::values(const Labels& labels) const {
  const Row* row = find(labels);
  return row == nullptr ? std::vector<double>{} : row->values;
}

Row& Results::row(const Labels& labels) {
  const auto found = std::ranges::find_if(rows, [&](const Row& row) { return has_labels(row, labels); });
  return found == rows.end() ? rows.emplace_back(Row{.labels = labels}) : *found;
}

std::vector<Labels> Results::values_of(const std::string& label) const {
  std::vector<Labels> values;
  for (const Row& row : rows) add_once(values, row.labels.at(label));
  return values;
}

void Results::merge(const Results& more) {
  for (const Row& added : more.rows) {
    Row& known = row(added.labels);
    known.values.insert(known.values.end(), added.values.begin(), added.values.end());
    if (known.settings.empty()) known.settings = added.settings;
  }
  for (const auto& note : more.notes) add_once(notes, note);
  faults.insert(faults.end(), more.faults.begin(), more.faults.end());
}

void write_results(const std::string& file, const Results& results) {
  auto rows = Labels::array();
  for (const Row& row : results.rows) {
    rows.push_back({{"labels", row.labels}, {"values", row.values}, {"settings", row.settings}});
  }
  write_file(file, Labels{{"rows", rows}, {"notes", results.notes}, {"faults", results.faults}}.dump());
}

Results read_results(const std::string& file) {
  return parsed(file, [](std::istream& in) {
    const auto document = Labels::parse(in);
    Results results{.notes = document.at("notes"), .faults = document.at("faults")};
    for (const auto& row : document.at("rows")) {
      results.rows.push_back({.labels = row.at("labels"), .values = row.at("values"), .settings = row.at("settings")});
    }
    return results;
  });
}

void append_line(const std::string& file, const Labels& line) {
  std::ofstream out(file, std::ios::app);
  if (!(out << line.dump() + "\n" << std::flush)) throw std::runtime_error("cannot write to " + file);
}

std::vector<Labels> read_lines(const std::string& file) {
  return parsed(file, [](std::istream& in) {
    std::vector<Labels> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(Labels::parse(line));
    return lines;
  });
}

void write_file(const std::string& file, const std::string& text) {
  std::ofstream out(file);
  out << text;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + file);
}

}  // namespace tutti::bench
