#include "tracking/report/tables.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "tracking/report/html.h"

namespace tutti {
namespace {

/// In a narrow window, `label` appears beside the value in a row of its own.
std::string number_cell(const char* label, const std::string& value, const std::string& detail = "") {
  return std::string("<td class=\"number\" data-label=\"") + label + "\">" + value +
         (detail.empty() ? "" : "<small>" + detail + "</small>") + "</td>";
}

std::string empty_cell(const char* label) {
  return std::string("<td class=\"number none\" data-label=\"") + label + "\">\u2013</td>";
}

std::string run_cell(const RunRecord& run, std::size_t number) {
  return "<th scope=\"row\" class=\"run\">" + run_swatch(number) + escape(run.name) + "<small>" +
         format_date(run.started) + "</small></th>";
}

/// Which value of a scalar is the best one.
enum class Best { lowest, highest };

const Point* best_of(const Series& series, Best kind) {
  const Point* best = nullptr;
  for (const auto& point : series.points) {
    if (!std::isfinite(point.value)) continue;
    const bool is_better =
        best == nullptr || (kind == Best::lowest ? point.value < best->value : point.value > best->value);
    if (is_better) best = &point;
  }
  return best;
}

std::string last_cell(const char* label, const Series* series) {
  return series == nullptr ? empty_cell(label) : number_cell(label, format_number(series->points.back().value));
}

std::string best_cell(const char* label, const Series* series, Best kind = Best::lowest) {
  const auto* best = series == nullptr ? nullptr : best_of(*series, kind);
  if (best == nullptr) return empty_cell(label);
  return number_cell(label, format_number(best->value), "step " + format_count(best->step));
}

/// The median, because the first steps and those with a checkpoint are not typical of the run.
std::optional<double> samples_per_second(const RunRecord& run) {
  const auto* series = run.find("samples_per_second");
  if (series == nullptr) return std::nullopt;
  std::vector<double> rates;
  for (const auto& point : series->points) {
    if (std::isfinite(point.value)) rates.push_back(point.value);
  }
  if (rates.empty()) return std::nullopt;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

std::string session_text(const RunRecord& run) {
  std::string text;
  for (const auto step : run.session_steps) {
    if (step > 0) text += (text.empty() ? "resumed at " : ", ") + format_count(step);
  }
  const std::string reason = run.end_reason();
  return text + (text.empty() || reason.empty() ? "" : "; ") + escape(reason);
}

}  // namespace

std::string summary_table(const std::vector<RunRecord>& runs) {
  const auto any_has = [&](const char* scalar) {
    return std::any_of(runs.begin(), runs.end(), [&](const RunRecord& run) { return run.find(scalar) != nullptr; });
  };
  const bool has_evaluation = any_has("eval/loss");
  const bool has_accuracy = any_has("eval/accuracy");
  const bool has_rate = any_has("samples_per_second");
  std::vector<const char*> columns{"Steps", "Last loss", "Best loss"};
  if (has_evaluation) columns.push_back("Best eval loss");
  if (has_accuracy) columns.push_back("Best eval accuracy");
  columns.push_back("Wall time");
  if (has_rate) columns.push_back("Samples/s");
  std::string html = "<div class=\"scroll\"><table class=\"summary\"><thead><tr><th scope=\"col\">Run</th>";
  for (const auto* name : columns) html += std::string("<th scope=\"col\" class=\"number\">") + name + "</th>";
  html += "</tr></thead><tbody>";
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const auto& one = runs[run];
    html += "<tr>" + run_cell(one, run) + number_cell("Steps", format_count(one.last_step), session_text(one)) +
            last_cell("Last loss", one.find("loss")) + best_cell("Best loss", one.find("loss"));
    if (has_evaluation) html += best_cell("Best eval loss", one.find("eval/loss"));
    if (has_accuracy) html += best_cell("Best eval accuracy", one.find("eval/accuracy"), Best::highest);
    html += number_cell("Wall time", format_wall_time(one.wall_seconds));
    if (has_rate) {
      const auto rate = samples_per_second(one);
      html += !rate         ? empty_cell("Samples/s")
              : *rate < 100 ? number_cell("Samples/s", format_number(*rate, 3), "median")
                            : number_cell("Samples/s", format_count(std::llround(*rate)), "median");
    }
    html += "</tr>";
  }
  return html + "</tbody></table></div>\n";
}

std::string hyperparameter_table(const std::vector<RunRecord>& runs) {
  std::set<std::string> names;
  for (const auto& run : runs) {
    for (const auto& [name, value] : run.hyperparameters) names.insert(name);
  }
  if (names.empty()) return "";
  std::string html =
      "<div class=\"scroll\"><table class=\"hyperparameters\"><thead><tr><th scope=\"col\"><span class=\"hidden\">"
      "Hyperparameter</span></th>";
  for (std::size_t run = 0; run < runs.size(); ++run) {
    html += "<th scope=\"col\">" + run_swatch(run) + escape(runs[run].name) + "</th>";
  }
  html += "</tr></thead><tbody>";
  for (const auto& name : names) {
    std::string cells;
    std::set<std::string> values;
    for (const auto& run : runs) {
      const auto found = run.hyperparameters.find(name);
      const bool is_there = found != run.hyperparameters.end();
      values.insert(is_there ? "=" + found->second : "");
      cells += is_there ? "<td>" + escape(found->second) + "</td>" : "<td class=\"none\">\u2013</td>";
    }
    const bool differs = values.size() > 1;
    html += std::string(differs ? "<tr class=\"differs\">" : "<tr>") + "<th scope=\"row\">" + escape(name) +
            (differs ? "<span class=\"sign\" title=\"the runs differ\">\u2260</span>" : "") + "</th>" + cells + "</tr>";
  }
  return html + "</tbody></table></div>\n";
}

std::string text_section(const std::vector<RunRecord>& runs) {
  constexpr std::size_t most = 20;  // texts of each run
  std::string html;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const auto& texts = runs[run].texts;
    std::size_t count = 0;
    for (auto text = texts.rbegin(); text != texts.rend() && count < most; ++text, ++count) {
      html += std::string("<details") + (count == 0 ? " open=\"open\"" : "") + "><summary>" + run_swatch(run) +
              escape(text->name) + "<small>" + escape(runs[run].name) + ", step " + format_count(text->step) +
              "</small></summary><pre>" + escape(text->text) + "</pre></details>\n";
    }
    if (texts.size() > most) {
      html += "<p class=\"note\">" + format_count(static_cast<std::int64_t>(texts.size() - most)) +
              " earlier texts of " + escape(runs[run].name) + " are in its file.</p>\n";
    }
  }
  return html;
}

}  // namespace tutti
