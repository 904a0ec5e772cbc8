#include "sync/table.h"

#include <algorithm>
#include <functional>
#include <iterator>

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

/// The system whose time is the base of a row, and the mode that synchronizes as often.
Labels peer_of(const std::string& system, Mode mode) {
  const bool rounds = system.find("between nodes") != std::string::npos || system.find("fp16") != std::string::npos;
  return {{"system", rounds ? "c10d::Reducer, fp16 hook" : "c10d::Reducer"},
          {"mode", name_of(mode == Mode::baseline ? mode : Mode::no_sync)}};
}

/// How much longer each repeat took than the same repeat without communication.
std::vector<double> added_by(const std::vector<double>& values, const std::vector<double>& alone) {
  std::vector<double> added;
  if (values.size() == alone.size()) std::ranges::transform(values, alone, std::back_inserter(added), std::minus<>());
  return added;
}

void add_added_time(Report& report, const Results& results, const std::vector<double>& alone) {
  report.add_text(
      "Milliseconds that communication adds to a batch: median of the differences to the same repeat without "
      "communication, × that of c10d::Reducer (encoded between nodes: with its fp16 hook; in all other columns than "
      "baseline: with "
      "no_sync), (min-max).");
  std::vector<std::string> columns{""};
  for (const auto mode : all_modes) columns.push_back(name_of(mode));
  report.add_table(columns);
  for (const auto& system : results.values_of("system")) {
    const Row& first = *results.find({{"system", system}});
    if (system == "none" || has_own_processes(first)) continue;
    std::vector<std::string> cells{label(first)};
    for (const auto mode : all_modes) {
      const auto base = added_by(results.values(peer_of(system, mode)), alone);
      cells.push_back(cell(added_by(results.values({{"system", system}, {"mode", name_of(mode)}}), alone), 1,
                           base.empty() ? 0 : statistics_of(base).median));
    }
    report.add_row(cells);
  }
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
  if (results.find({{"system", "c10d::Reducer"}}) != nullptr) add_added_time(report, results, alone);
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
