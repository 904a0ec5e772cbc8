#include "plan_check/table.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report/spread.h"

namespace tutti::bench {
namespace {

std::string cell(const std::vector<double>& values) {
  const auto [median, least, most] = spread_of(values);
  std::string text = number(median, 0);
  if (values.size() > 1) text += " (" + number(least, 0) + "-" + number(most, 0) + ")";
  return text;
}

std::string signed_percent(double part) {
  std::string text(part < 0 ? "" : "+");
  text += number(100 * part, 1);
  return text + " %";
}

}  // namespace

double error_of(const PlanCheckRow& row) {
  return spread_of(row.predicted).median / spread_of(row.measured).median - 1;
}

std::string plan_check_markdown(const std::vector<PlanCheckRow>& rows, const PlanCheckOptions& options,
                                const std::vector<std::string>& notes, const Machine& machine) {
  std::ostringstream out;
  out << "Milliseconds of an optimizer step of " << counted(options.accumulation, "micro-batch") << " a rank, "
      << "as predicted and as measured: median of " << options.repeats << ", (min-max).\n\n"
      << "| nodes | ranks | link | gradients exchanged | predicted | measured | error "
         "|\n|---|---|---|---|---|---|---|\n";
  std::vector<double> errors;
  for (const PlanCheckRow& row : rows) {
    errors.push_back(std::abs(error_of(row)));
    out << "| " << row.layout.nodes << " | " << row.layout.ranks() << " | " << row.rate << " | "
        << (row.exchange == "once" ? "once a step" : "in every pass") << " | " << cell(row.predicted) << " | "
        << cell(row.measured) << " | " << signed_percent(error_of(row)) << " |\n";
  }
  out << '\n';
  if (!errors.empty()) {
    out << "- the largest error is " << number(100 * std::ranges::max(errors), 1) << " %, the median "
        << number(100 * spread_of(errors).median, 1) << " %; a measured step is the median of " << options.steps
        << '\n';
  }
  for (const auto& note : notes) out << "- " << note << '\n';
  out << "- " << describe(machine) << '\n';
  return out.str();
}

std::string plan_check_json(const std::vector<PlanCheckRow>& rows, const PlanCheckOptions& options,
                            const Machine& machine) {
  auto json = nlohmann::ordered_json::array();
  for (const PlanCheckRow& row : rows) {
    const auto [median, least, most] = spread_of(row.measured);
    nlohmann::ordered_json object{{"nodes", row.layout.nodes},
                                  {"ranks", row.layout.ranks()},
                                  {"exchange", row.exchange},
                                  {"median", median},
                                  {"min", least},
                                  {"max", most},
                                  {"predicted", spread_of(row.predicted).median},
                                  {"error", error_of(row)},
                                  {"unit", "ms/step"},
                                  {"repeats", row.measured.size()},
                                  {"steps", options.steps},
                                  {"accumulation", options.accumulation},
                                  {"libtorch", machine.libtorch},
                                  {"commit", machine.commit}};
    object["rate"] = row.rate.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(row.rate);
    json.push_back(std::move(object));
  }
  return json.dump(2) + "\n";
}

}  // namespace tutti::bench
