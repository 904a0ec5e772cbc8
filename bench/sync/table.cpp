#include "sync/table.h"

#include <algorithm>

#include "report/statistics.h"
#include "sync/mode.h"

namespace tutti::bench {
namespace {

bool has_own_processes(const Row& row) {
  return row.labels.at("own_processes");
}

std::string label(const Row& row) {
  const std::string system = row.labels.at("system");
  if (system == "hand-written") return "hand-written loop";
  if (system == "none") return "no communication";
  if (system == "none in Python") return "no communication, Python";
  return has_own_processes(row) ? system + " [own processes]" : system;
}

double largest_bytes(const Results& results) {
  double most = 0;
  for (const Row& row : results.rows) most = std::max(most, row.labels.at("bytes").get<double>());
  return most;
}

}  // namespace

int report_sync(Report& report, Results results, const SyncOptions& options, const std::string& model) {
  report.add_text("Milliseconds per batch, " + describe(options) + ": median of " + std::to_string(options.repeats) +
                  ", × the time without communication, (min-max).");
  report.add_note(std::to_string(options.batches) + " batches of " + std::to_string(options.batch_size) +
                  " sequences on each rank, an optimizer step every " + std::to_string(options.steps) + "; " +
                  number(largest_bytes(results) / 1e6, 1) + " MB of fp32 gradients in a synchronization");
  report.add_note(model);
  std::vector<std::string> columns{""};
  for (const auto mode : all_modes) columns.push_back(name_of(mode));
  report.add_table(columns);
  const auto alone = results.values({{"system", "none"}, {"mode", name_of(Mode::baseline)}});
  const double base = alone.empty() ? 1 : statistics_of(alone).median;
  for (const auto& system : results.values_of("system")) {
    const Row& first = *results.find({{"system", system}});
    std::vector<std::string> cells{label(first)};
    for (const auto mode : all_modes) {
      cells.push_back(cell(results.values({{"system", system}, {"mode", name_of(mode)}}), 1, base));
    }
    report.add_row(cells);
    if (!first.settings.empty()) report.add_note(label(first) + ": " + first.settings);
  }
  if (std::ranges::any_of(results.rows, has_own_processes)) {
    report.add_note(
        "[own processes]: Python, in separate runs before and after the other rows, not alternating with them");
  }
  for (Row& row : results.rows) row.labels["settings"] = row.settings;
  report.add_json(results, {{"nodes", options.nodes},
                            {"ranks", options.ranks},
                            {"unit", "ms/batch"},
                            {"dtype", "float32"},
                            {"steps", options.steps},
                            {"batches", options.batches},
                            {"batch_size", options.batch_size},
                            {"rate", options.nodes == 1 ? Labels() : Labels(options.rate)}});
  return report.finish(options.json);
}

}  // namespace tutti::bench
