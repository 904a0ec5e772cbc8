#pragma once
// The measurements of a benchmark, which ranks pass to the process that reports them.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tutti::bench {

/// A JSON object: the keys of a row in the file of --json, such as {"system", "tutti"}.
using Labels = nlohmann::ordered_json;

struct Row {
  Labels labels{};
  std::vector<double> values{};  ///< one for each repeat
  std::string settings{};        ///< description of the system's settings; empty for its defaults
};

struct Results {
  std::vector<Row> rows{};
  std::vector<std::string> notes{};   ///< lines under the table
  std::vector<std::string> faults{};  ///< wrong results, which make their figures meaningless

  /// Returns the first row that has these labels, or nullptr.
  const Row* find(const Labels& labels) const;
  /// Returns the values of that row; empty if there is none.
  std::vector<double> values(const Labels& labels) const;
  /// Returns the row that has these labels, and adds it if there is none.
  Row& row(const Labels& labels);
  /// Returns the different values of a label, in the order of the rows.
  std::vector<Labels> values_of(const std::string& label) const;
  /// Adds the contents of `more`, each note once.
  void merge(const Results& more);
};

/// Pass results between processes. They throw std::runtime_error if the file cannot be written or is not valid.
void write_results(const std::string& file, const Results& results);
Results read_results(const std::string& file);

/// Appends a line in one call, so that the lines of several ranks do not mix. Throws std::runtime_error.
void append_line(const std::string& file, const Labels& line);
/// Reads the lines of append_line(). Throws std::runtime_error if the file is not valid.
std::vector<Labels> read_lines(const std::string& file);

/// Writes `text` to `file`. Throws std::runtime_error.
void write_file(const std::string& file, const std::string& text);

}  // namespace tutti::bench
