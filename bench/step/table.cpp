#include "step/table.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "report/spread.h"

namespace tutti::bench {
namespace {

std::string cell(const std::vector<double>& values, int decimals) {
  if (values.empty()) return "";
  const auto [median, least, most] = spread_of(values);
  return number(median, decimals) + " (" + number(least, decimals) + "-" + number(most, decimals) + ")";
}

std::vector<double> ratios(const Figure& figure) {
  std::vector<double> result;
  for (std::size_t i = 0; i < figure.libtorch.size(); ++i) result.push_back(figure.tutti[i] / figure.libtorch[i]);
  return result;
}

}  // namespace

std::string step_markdown(const std::vector<Figure>& figures, const StepOptions& options, const Machine& machine) {
  std::ostringstream out;
  out << "One process, one thread: median of " << options.repeats << " (min-max).\n\n"
      << "| | LibTorch | tutti | tutti / LibTorch |\n|---|---|---|---|\n";
  for (const auto& figure : figures) {
    const int decimals = figure.unit == "ns" ? 0 : 2;
    out << "| " << figure.name << ", " << figure.unit << " | " << cell(figure.libtorch, decimals) << " | "
        << cell(figure.tutti, decimals) << " | " << cell(ratios(figure), 2) << " |\n";
  }
  out << "\n- batch: forward, backward, AdamW step every " << counted(options.steps, "batch") << ", zero_grad; "
      << options.batches << " batches of " << counted(options.batch_size, "sequence") << " in a repeat\n"
      << "- a part alone: " << counted(options.calls, "call") << " in a repeat\n"
      << "- GPT of width " << options.width << ", " << counted(options.layers, "layer") << ", context "
      << options.context << ", vocabulary " << options.vocabulary << "\n- " << describe(machine) << '\n';
  return out.str();
}

std::string step_json(const std::vector<Figure>& figures, const StepOptions& options, const Machine& machine) {
  auto rows = nlohmann::ordered_json::array();
  const auto add = [&](const Figure& figure, const char* system, const std::vector<double>& values, const auto& unit) {
    if (values.empty()) return;
    const auto [median, least, most] = spread_of(values);
    rows.push_back({{"figure", figure.name},
                    {"system", system},
                    {"median", median},
                    {"min", least},
                    {"max", most},
                    {"unit", unit},
                    {"repeats", values.size()},
                    {"steps", options.steps},
                    {"batches", options.batches},
                    {"batch_size", options.batch_size},
                    {"libtorch", machine.libtorch},
                    {"commit", machine.commit}});
  };
  for (const auto& figure : figures) {
    add(figure, "LibTorch", figure.libtorch, figure.unit);
    add(figure, "tutti", figure.tutti, figure.unit);
    add(figure, "tutti / LibTorch", ratios(figure), "1");
  }
  return rows.dump(2) + "\n";
}

}  // namespace tutti::bench
