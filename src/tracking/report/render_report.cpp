#include <algorithm>
#include <iterator>
#include <set>

#include "tracking/report/curves.h"
#include "tracking/report/html.h"
#include "tracking/report/page.h"
#include "tracking/report/run_reader.h"
#include "tracking/report/step_times.h"
#include "tracking/report/tables.h"
#include "tutti/core/error.h"
#include "tutti/detail/tracking/report.h"

namespace tutti {
namespace {

/// The scalars whose figures come first. "eval/" stands for all others of the evaluation.
const std::vector<std::string> first_scalars{"loss", "eval/loss", "eval/", "lr", "grad_norm"};

std::vector<RunRecord> read_runs(const std::vector<std::filesystem::path>& paths) {
  if (paths.empty()) throw UsageError("no run: name a .jsonl file, or a folder with metrics.jsonl");
  std::vector<RunRecord> runs;
  std::set<std::string> names;
  for (const auto& path : paths) {
    runs.push_back(read_run(path));
    const std::string name = runs.back().name;
    for (int number = 2; !names.insert(runs.back().name).second; ++number) {
      runs.back().name = name + " (" + std::to_string(number) + ")";
    }
  }
  return runs;
}

/// The most common scalars first, then all others by name. The epoch has no figure: it is a straight line.
std::vector<std::string> scalars_in_order(const std::vector<RunRecord>& runs) {
  std::set<std::string> names;
  for (const auto& run : runs) {
    for (const auto& series : run.series) {
      if (!is_step_time(series.name) && series.name != "epoch") names.insert(series.name);
    }
  }
  std::vector<std::string> order;
  for (const auto& first : first_scalars) {
    for (auto name = names.lower_bound(first); name != names.end() && name->starts_with(first);) {
      const bool is_chosen = first.ends_with('/') || *name == first;
      if (is_chosen) order.push_back(*name);
      name = is_chosen ? names.erase(name) : std::next(name);
    }
    if (names.contains(companion_of(first)) && !order.empty() && order.back() == first)
      names.erase(companion_of(first));
  }
  order.insert(order.end(), names.begin(), names.end());
  return order;
}

std::string curves(const std::vector<RunRecord>& runs) {
  std::string html;
  for (const auto& scalar : scalars_in_order(runs)) {
    if (scalar == "loss") {
      html += curve_figure(scalar, runs, ChartSize::wide) + curve_figure(scalar, runs, ChartSize::narrow);
    } else {
      html += curve_figure(scalar, runs, ChartSize::half);
    }
  }
  return html.empty() ? "" : "<div class=\"charts\">\n" + html + "</div>\n";
}

std::string section(const std::string& heading, const std::string& content) {
  return content.empty() ? "" : "<section><h2>" + heading + "</h2>\n" + content + "</section>\n";
}

std::string names_of(const std::vector<RunRecord>& runs) {
  std::string names;
  for (const auto& run : runs) names += (names.empty() ? "" : " \u00B7 ") + run.name;
  return names;
}

std::string footer(const std::vector<RunRecord>& runs, const std::vector<std::filesystem::path>& paths) {
  const auto count = [](std::size_t number) { return format_count(static_cast<std::int64_t>(number)); };
  std::string html = "<footer>\n";
  for (std::size_t run = 0; run < runs.size(); ++run) {
    html += "<p>" + escape(runs[run].name) + ": " + escape(paths[run].string());
    if (runs[run].void_values > 0) {
      html += "; values that a later start made void: " + count(runs[run].void_values);
    }
    if (runs[run].unread_lines > 0) html += "; unreadable lines: " + count(runs[run].unread_lines);
    html += "</p>\n";
  }
  return html + "</footer>\n";
}

}  // namespace

std::string render_report(const std::vector<std::filesystem::path>& paths, const std::string& title) {
  const auto runs = read_runs(paths);
  const std::string heading = escape(title.empty() ? names_of(runs) : title);
  // The page is also well-formed XML. CDATA hides the script's comparisons from XML, and the comment marks hide CDATA
  // from HTML.
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>" +
      heading + "</title>\n<style>/*<![CDATA[*/" + std::string(page_style()) +
      "/*]]>*/</style>\n</head>\n<body>\n<header>\n<p class=\"kicker\">Training report</p>\n<h1>" + heading +
      "</h1>\n</header>\n<main>\n" + summary_table(runs);
  html += section("Curves", curves(runs));
  html += section("Where a step\u2019s time goes",
                  step_times_figure(runs, ChartSize::wide) + step_times_figure(runs, ChartSize::narrow));
  html += section("Hyperparameters", hyperparameter_table(runs));
  html += section("Texts", text_section(runs));
  return html + "</main>\n" + footer(runs, paths) + "<script>//<![CDATA[" + std::string(page_script()) +
         "//]]></script>\n</body>\n</html>\n";
}

}  // namespace tutti
