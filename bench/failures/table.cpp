#include "failures/table.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report/spread.h"

namespace tutti::bench {
namespace {

/// The smallest value that at least 99 % of the trials do not exceed.
double percentile_99(std::vector<double> values) {
  std::ranges::sort(values);
  const double place = std::ceil(0.99 * static_cast<double>(values.size()));
  return values[static_cast<std::size_t>(place) - 1];
}

std::string description(const std::string& failure, int nodes) {
  if (failure == "cut") return "one of two nodes cut off (no packet passes)";
  std::string text = "in a call that the others do not make";
  if (failure == "killed") text = "killed (SIGKILL)";
  if (failure == "stopped") text = "stopped (SIGSTOP)";
  return text + (nodes == 1 ? ", one node" : ", two nodes");
}

}  // namespace

std::string failures_markdown(const std::vector<FailuresRow>& rows, const FailuresOptions& options,
                              const Machine& machine) {
  std::ostringstream out;
  out << "From the failure of one of " << counted(options.ranks, "rank")
      << " until the last of the others reported it: " << counted(options.trials, "trial") << " each, seconds.\n\n"
      << "| failure | during | median | 99 of 100 | most | trials with a wrong name or none "
         "|\n|---|---|---|---|---|---|\n";
  for (const FailuresRow& row : rows) {
    out << "| " << description(row.failure, options.nodes) << " | " << row.during << " | ";
    if (row.seconds.empty()) {
      out << "| | ";
    } else {
      const auto [median, least, most] = spread_of(row.seconds);
      out << number(median, 2) << " | " << number(percentile_99(row.seconds), 2) << " | " << number(most, 2);
    }
    out << " | " << row.misnamed << " |\n";
  }
  out << "\n- no timeout and no environment variable is set\n- " << describe(machine) << '\n';
  return out.str();
}

std::string failures_json(const std::vector<FailuresRow>& rows, const FailuresOptions& options,
                          const Machine& machine) {
  auto json = nlohmann::ordered_json::array();
  for (const FailuresRow& row : rows) {
    if (row.seconds.empty()) continue;
    const auto [median, least, most] = spread_of(row.seconds);
    json.push_back({{"failure", row.failure},
                    {"during", row.during},
                    {"median", median},
                    {"min", least},
                    {"max", most},
                    {"p99", percentile_99(row.seconds)},
                    {"unit", "s"},
                    {"trials", row.seconds.size()},
                    {"misnamed", row.misnamed},
                    {"ranks", options.ranks},
                    {"nodes", row.failure == "cut" ? 2 : options.nodes},
                    {"libtorch", machine.libtorch},
                    {"commit", machine.commit}});
  }
  return json.dump(2) + "\n";
}

}  // namespace tutti::bench
