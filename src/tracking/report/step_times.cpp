#include "tracking/report/step_times.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "tracking/report/html.h"
#include "tracking/report/ticks.h"

namespace tutti {
namespace {

constexpr std::array<std::string_view, 6> stages{"data", "forward", "backward", "waiting", "optimizer", "other"};

/// The sizes of a figure. A narrow figure has larger texts in its own units: see page_style.cpp.
struct Layout {
  double width;
  double label_width;
  double total_width;
  double least_share;  ///< the minimum width of a segment with a label
};
constexpr Layout wide_layout{.width = 1120, .label_width = 64, .total_width = 84, .least_share = 40};
constexpr Layout narrow_layout{.width = 540, .label_width = 70, .total_width = 96, .least_share = 50};
constexpr double bar_height = 24;
constexpr double row_height = 31;
constexpr double heading_height = 28;

struct TimeName {
  int rank = 0;
  std::string stage{};
};

std::optional<TimeName> parse_name(const std::string& scalar) {
  constexpr std::string_view begin = "time/rank_";
  if (!scalar.starts_with(begin)) return std::nullopt;
  TimeName name;
  const char* end = scalar.data() + scalar.size();
  const auto [rest, error] = std::from_chars(scalar.data() + begin.size(), end, name.rank);
  if (error != std::errc() || rest == end || *rest != '/') return std::nullopt;
  name.stage = std::string(rest + 1, end);
  // An unknown stage counts as "other".
  if (std::find(stages.begin(), stages.end(), name.stage) == stages.end()) name.stage = "other";
  return name;
}

double seconds_a_step(const Series& series, const std::vector<std::int64_t>& session_steps) {
  double seconds = 0;
  std::int64_t steps = 0;
  std::optional<std::int64_t> before;
  for (const auto& [step, value] : series.points) {
    auto since = before;
    for (const auto begin : session_steps) {
      if (begin < step && (!since || begin > *since)) since = begin;
    }
    if (since && std::isfinite(value)) {
      seconds += value;
      steps += step - *since;
    }
    before = step;
  }
  return steps == 0 ? 0 : seconds / static_cast<double>(steps);
}

double total(const StageTimes& times) {
  double sum = 0;
  for (const auto& [stage, seconds] : times) sum += seconds;
  return sum;
}

std::string milliseconds(double seconds) {
  const double ms = seconds * 1000;
  return format_number(ms, ms >= 1000 ? 4 : 3) + " ms";
}

std::string segment(const std::string& css, double x, double y, double segment_width, const std::string& title) {
  return "<rect class=\"" + css + "\" x=\"" + px(x) + "\" y=\"" + px(y) + "\" width=\"" + px(segment_width) +
         "\" height=\"" + px(bar_height) + "\"><title>" + title + "</title></rect>";
}

std::string bar(int rank, const StageTimes& times, double y, const Axis& axis, const Layout& layout) {
  const double sum = total(times);
  std::string svg =
      svg_text("tick row", layout.label_width - 10, y + bar_height / 2 + 4, "rank " + std::to_string(rank));
  double before = 0;
  for (const auto stage : stages) {
    const auto found = times.find(std::string(stage));
    if (found == times.end() || found->second <= 0) continue;
    const double from = axis.position(before);
    const double to = axis.position(before + found->second);
    const auto percent = std::to_string(std::lround(found->second / sum * 100)) + "%";
    const std::string name(stage);
    const std::string title =
        "rank " + std::to_string(rank) + ", " + name + ": " + milliseconds(found->second) + " a step, " + percent;
    svg += segment("stage " + name, from, y, to - from, title);
    if (name == "waiting") svg += segment("hatch", from, y, to - from, title);
    if (to - from >= layout.least_share)
      svg += svg_text(("share on-" + name).c_str(), (from + to) / 2, y + bar_height / 2 + 4, percent);
    before += found->second;
  }
  return svg + svg_text("total", axis.position(before) + 10, y + bar_height / 2 + 4, milliseconds(sum));
}

/// The rank that the others wait for, if there is a clear one.
std::string finding(const RunRecord& run, const std::map<int, StageTimes>& ranks) {
  const auto waiting = [](const auto& rank) {
    const auto found = rank.second.find("waiting");
    return found == rank.second.end() ? 0.0 : found->second / total(rank.second);
  };
  if (ranks.size() < 2) return "";
  const auto less = [&](const auto& a, const auto& b) { return waiting(a) < waiting(b); };
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end(), less);
  constexpr double notable = 0.1;
  if (waiting(*most) - waiting(*least) < notable) return "";
  const auto percent = [](double share) { return std::to_string(std::lround(share * 100)) + "%"; };
  return "<p class=\"finding\"><b>" + escape(run.name) + "</b>: rank " + std::to_string(least->first) +
         " waits least (" + percent(waiting(*least)) + " of its time), so the others wait for it; rank " +
         std::to_string(most->first) + " waits most (" + percent(waiting(*most)) + ").</p>";
}

std::string stage_legend(const std::vector<std::map<int, StageTimes>>& runs) {
  std::string html = "<ul class=\"legend\">";
  for (const auto stage : stages) {
    const std::string name(stage);
    const bool is_used = std::any_of(runs.begin(), runs.end(), [&](const auto& ranks) {
      return std::any_of(ranks.begin(), ranks.end(), [&](const auto& rank) { return rank.second.contains(name); });
    });
    if (!is_used) continue;
    html +=
        "<li><svg class=\"swatch\" viewBox=\"0 0 14 14\" width=\"14\" height=\"14\" aria-hidden=\"true\">"
        "<rect class=\"stage " +
        name + "\" width=\"14\" height=\"14\" rx=\"2\"/>";
    if (name == "waiting") html += "<rect class=\"hatch\" width=\"14\" height=\"14\" rx=\"2\"/>";
    html += "</svg>" + name +
            (name == "other" ? " (logging, evaluation, checkpoints, the program\u2019s own code)" : "") + "</li>";
  }
  return html + "</ul>";
}

}  // namespace

std::map<int, StageTimes> step_times(const RunRecord& run) {
  std::map<int, StageTimes> ranks;
  for (const auto& series : run.series) {
    if (const auto name = parse_name(series.name)) {
      ranks[name->rank][name->stage] += seconds_a_step(series, run.session_steps);
    }
  }
  std::erase_if(ranks, [](const auto& rank) { return total(rank.second) <= 0; });
  return ranks;
}

bool is_step_time(const std::string& scalar) {
  return parse_name(scalar).has_value();
}

std::string step_times_figure(const std::vector<RunRecord>& runs, ChartSize size) {
  std::vector<std::map<int, StageTimes>> times;
  double longest = 0;
  for (const auto& run : runs) {
    times.push_back(step_times(run));
    for (const auto& [rank, stage_times] : times.back()) longest = std::max(longest, total(stage_times));
  }
  if (longest <= 0) return "";

  const bool is_wide = size == ChartSize::wide;
  const Layout& layout = is_wide ? wide_layout : narrow_layout;
  // One pattern per figure, because browsers do not draw a pattern that belongs to a hidden figure.
  const std::string hatch = is_wide ? "hatch" : "hatch-narrow";
  const Axis axis{.low = 0, .high = longest, .from = layout.label_width, .to = layout.width - layout.total_width};
  std::string bars;
  std::string findings;
  double y = 4;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    if (times[run].empty()) continue;
    if (runs.size() > 1) {
      bars += "<g class=\"" + run_class(run) + "\">" + run_mark(run, layout.label_width + 6, y + 9) + "</g>" +
              svg_text("heading", layout.label_width + 18, y + 13, escape(runs[run].name));
      y += heading_height;
    }
    for (const auto& [rank, stage_times] : times[run]) {
      bars += bar(rank, stage_times, y, axis, layout);
      y += row_height;
    }
    y += 6;
    findings += finding(runs[run], times[run]);
  }
  return "<figure class=\"" + std::string(figure_class(size)) +
         "\"><figcaption><h3>mean step, rank by rank</h3><span class=\"note\"></span>" + stage_legend(times) +
         "</figcaption><svg class=\"bars\" role=\"img\" aria-label=\"Time of a step by rank and "
         "stage\" viewBox=\"0 0 " +
         px(layout.width) + " " + px(y) + "\"><defs><pattern id=\"" + hatch +
         "\" width=\"6\" height=\"6\" "
         "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><path d=\"M0 0V6\" class=\"hatch-line\"/>"
         "</pattern></defs>" +
         bars + "</svg>" + findings + "</figure>\n";
}

}  // namespace tutti
