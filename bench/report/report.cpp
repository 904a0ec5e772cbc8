#include "report/report.h"

#include <iostream>

#include "report/statistics.h"

namespace tutti::bench {

void Report::add_text(const std::string& text) {
  if (text_.tellp() > 0) text_ << '\n';
  text_ << text << '\n';
}

void Report::add_table(const std::vector<std::string>& columns) {
  if (text_.tellp() > 0) text_ << '\n';
  add_row(columns);
  text_ << '|';
  for (std::size_t i = 0; i < columns.size(); ++i) text_ << "---|";
  text_ << '\n';
}

void Report::add_row(const std::vector<std::string>& cells) {
  text_ << '|';
  for (const auto& text : cells) text_ << ' ' << text << " |";
  text_ << '\n';
}

void Report::add_json(Labels labels, const std::vector<double>& values) {
  if (!values.empty()) {
    const auto statistics = statistics_of(values);
    labels.update({{"median", statistics.median}, {"min", statistics.least}, {"max", statistics.most}});
  }
  labels.update({{"libtorch", machine_.libtorch}, {"commit", machine_.commit}});
  json_.push_back(std::move(labels));
}

void Report::add_json(const Results& results, const Labels& common) {
  for (const Row& row : results.rows) {
    Labels labels = row.labels;
    if (!row.values.empty()) labels["repeats"] = row.values.size();
    labels.update(common);
    add_json(std::move(labels), row.values);
  }
  faults_.insert(faults_.end(), results.faults.begin(), results.faults.end());
}

int Report::finish(const std::string& json) const {
  std::cout << text_.str() << '\n';
  for (const auto& note : notes_) std::cout << "- " << note << '\n';
  std::cout << "- " << describe(machine_) << std::endl;
  if (!json.empty()) write_file(json, json_.dump(2) + "\n");
  for (const auto& fault : faults_) std::cerr << "tutti bench: wrong result: " << fault << '\n';
  return faults_.empty() ? 0 : 1;
}

}  // namespace tutti::bench
