#pragma once
// The report of a benchmark: Markdown tables with notes on standard output, and the rows in the file of --json.
#include <sstream>
#include <string>
#include <vector>

#include "report/machine.h"
#include "report/results.h"

namespace tutti::bench {

class Report {
 public:
  /// Create it before the measurement: it reads the load of the machine.
  Report() : machine_(describe_machine()) {}

  /// Adds a line of text above the next table.
  void add_text(const std::string& text);
  /// Starts a table.
  void add_table(const std::vector<std::string>& columns);
  /// Adds a row to the table that was started last.
  void add_row(const std::vector<std::string>& cells);
  /// Adds a line to the list under the tables.
  void add_note(const std::string& note) { notes_.push_back(note); }

  /// Adds a row of --json: `labels`, the median, smallest and largest of `values` if there are any, and the versions.
  void add_json(Labels labels, const std::vector<double>& values = {});
  /// Adds a row of --json for each row of `results`, with the number of its values and the labels `common`. The exit
  /// code is 1 if a result is wrong.
  void add_json(const Results& results, const Labels& common);

  /// Prints the tables and the notes, writes the rows to `json` unless that is empty, and names wrong results on
  /// standard error. Returns the exit code. Throws std::runtime_error if the file cannot be written.
  int finish(const std::string& json) const;

 private:
  Machine machine_;
  std::ostringstream text_{};
  std::vector<std::string> notes_{};
  std::vector<std::string> faults_{};
  Labels json_ = Labels::array();
};

}  // namespace tutti::bench
