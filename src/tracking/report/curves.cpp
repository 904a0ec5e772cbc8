#include "tracking/report/curves.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tracking/printed.h"
#include "tracking/report/html.h"
#include "tracking/report/series.h"
#include "tracking/report/ticks.h"

namespace tutti {
namespace {

constexpr std::size_t most_points = 1000;
constexpr std::size_t few_points = 40;  // up to this number, each point has a dot
constexpr int value_ticks = 5;
constexpr double largest_value = 1e300;  // of an axis; differences and margins of larger values could overflow

struct Curve {
  std::size_t run = 0;
  const RunRecord* of = nullptr;
  const Series* series = nullptr;
  bool is_companion = false;
  std::vector<std::size_t> shown{};
  std::vector<double> smooth{};  ///< empty if the curve is not noisy

  double line_value(std::size_t i) const { return smooth.empty() ? series->points[i].value : smooth[i]; }
  std::string name() const { return of->name + (is_companion ? ", after clipping" : ""); }
};

struct Plot {
  double width = 0;
  double height = 0;
  Axis x{};
  Axis y{};

  /// The position of a finite value. A value that exceeds the axis is drawn at its end.
  double y_of(double value) const { return y.position(std::clamp(value, y.low, y.high)); }
};

Curve curve_of(std::size_t run, const RunRecord& record, const Series& series) {
  Curve curve{.run = run, .of = &record, .series = &series, .shown = shown_points(series.points, most_points)};
  if (is_noisy(series.points)) {
    constexpr double windows = 40;  // windows per curve
    curve.smooth = smoothed(series.points, std::max(10.0, static_cast<double>(series.points.size()) / windows));
  }
  return curve;
}

bool has_equal_values(const Series& a, const Series& b) {
  return std::ranges::equal(a.points, b.points, [](const Point& x, const Point& y) {
    return x.step == y.step && (x.value == y.value || (std::isnan(x.value) && std::isnan(y.value)));
  });
}

std::vector<Curve> curves_of(const std::string& scalar, const std::vector<RunRecord>& runs) {
  const std::string companion = companion_of(scalar);
  std::vector<Curve> curves;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const auto* series = runs[run].find(scalar);
    const auto* second = companion.empty() ? nullptr : runs[run].find(companion);
    if (series != nullptr) curves.push_back(curve_of(run, runs[run], *series));
    if (second == nullptr || (series != nullptr && has_equal_values(*series, *second))) continue;
    curves.push_back(curve_of(run, runs[run], *second));
    curves.back().is_companion = true;
  }
  return curves;
}

/// True for values that fall so far that a linear axis would not show the end of the run.
bool wants_log(const std::string& scalar, double low, double high) {
  const bool is_falling_kind = scalar.find("loss") != std::string::npos ||
                               scalar.find("grad_norm") != std::string::npos ||
                               scalar.find("perplexity") != std::string::npos;
  return is_falling_kind && low > 0 && high / low >= 5;
}

Axis value_axis(const std::string& scalar, const std::vector<Curve>& curves) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const auto& curve : curves) {
    if (const auto range = finite_range(curve.series->points)) {
      low = std::min(low, range->first);
      high = std::max(high, range->second);
    }
  }
  if (low > high) return {.low = 0, .high = 1};
  low = std::clamp(low, -largest_value, largest_value);
  high = std::clamp(high, -largest_value, largest_value);
  Axis axis{.low = low, .high = high, .is_log = wants_log(scalar, low, high)};
  if (axis.is_log) {
    const double margin = std::pow(10, 0.04 * (std::log10(high) - std::log10(low)));
    axis.low = std::max(low / margin, std::numeric_limits<double>::denorm_min());
    axis.high = std::min(high * margin, largest_value);
    return axis;
  }
  if (low == high) {
    const double margin = std::fpclassify(low) == FP_NORMAL ? std::abs(low) * 0.1 : 1;
    return {.low = low - margin, .high = high + margin};
  }
  const double margin = (high - low) * 0.05;
  axis.high = high + margin;
  if (low >= 0 && low < 0.3 * high) return {.low = 0, .high = axis.high};
  const auto ticks = linear_ticks(low - margin, axis.high, value_ticks);
  if (ticks.empty()) return axis;  // the values differ by less than the least step
  // The axis begins at a tick.
  const double step = ticks.size() < 2 ? margin : ticks[1] - ticks[0];
  axis.low = ticks.front() - (low < ticks.front() ? step : 0);
  return axis;
}

/// All figures of a page have the same step axis, so that they can be compared.
Axis step_axis(const std::vector<RunRecord>& runs) {
  auto first = std::numeric_limits<std::int64_t>::max();
  auto last = std::numeric_limits<std::int64_t>::min();
  for (const auto& run : runs) {
    if (!run.session_steps.empty()) first = std::min(first, run.session_steps.front());
    for (const auto& series : run.series) first = std::min(first, series.points.front().step);
    last = std::max(last, run.last_step);
  }
  first = std::min(first, last - 1);
  return {.low = static_cast<double>(first), .high = static_cast<double>(last)};
}

Plot plot_of(const std::string& scalar, const std::vector<RunRecord>& runs, const std::vector<Curve>& curves,
             ChartSize size) {
  Plot plot{.width = size == ChartSize::wide ? 1120.0 : 540.0, .height = size == ChartSize::wide ? 380.0 : 250.0};
  plot.x = step_axis(runs);
  plot.x.from = 52;
  plot.x.to = plot.width - 14;
  plot.y = value_axis(scalar, curves);
  plot.y.from = plot.height - 46;
  plot.y.to = 12;
  return plot;
}

std::string line(const char* css, double x1, double y1, double x2, double y2) {
  return std::string("<line class=\"") + css + "\" x1=\"" + px(x1) + "\" y1=\"" + px(y1) + "\" x2=\"" + px(x2) +
         "\" y2=\"" + px(y2) + "\"/>";
}

std::string axes(const Plot& plot, ChartSize size) {
  std::string svg = "<g class=\"axes\">";
  const auto rows =
      plot.y.is_log ? log_ticks(plot.y.low, plot.y.high) : linear_ticks(plot.y.low, plot.y.high, value_ticks);
  const auto row_labels = tick_labels(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double y = plot.y.position(rows[i]);
    svg += line("grid", plot.x.from, y, plot.x.to, y) + svg_text("tick row", plot.x.from - 8, y + 3.8, row_labels[i]);
  }
  auto columns = linear_ticks(plot.x.low, plot.x.high, size == ChartSize::wide ? 8 : 4);
  std::erase_if(columns, [](double step) { return step != std::floor(step); });
  const auto column_labels = tick_labels(columns);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const double x = plot.x.position(columns[i]);
    svg += line("notch", x, plot.y.from, x, plot.y.from + 4) +
           svg_text("tick column", x, plot.y.from + 18, column_labels[i]);
  }
  svg += svg_text("tick column", (plot.x.from + plot.x.to) / 2, plot.y.from + 40, "optimizer step");
  return svg + line("base", plot.x.from, plot.y.from, plot.x.to, plot.y.from) + "</g>";
}

/// The line through the shown points; it breaks at a value between them that is not finite.
template <typename ValueOf>
std::string path(const Curve& curve, const Plot& plot, const char* css, const ValueOf& value_of) {
  const auto& points = curve.series->points;
  std::string steps;
  std::size_t previous = 0;
  for (const auto i : curve.shown) {
    const bool breaks = steps.empty() || std::any_of(points.begin() + static_cast<std::ptrdiff_t>(previous),
                                                     points.begin() + static_cast<std::ptrdiff_t>(i),
                                                     [](const Point& point) { return !std::isfinite(point.value); });
    steps.append(breaks ? "M" : "L").append(px(plot.x.position(static_cast<double>(points[i].step))));
    steps.append(" ").append(px(plot.y_of(value_of(i))));
    previous = i;
  }
  return steps.empty() ? "" : std::string("<path class=\"") + css + "\" d=\"" + steps + "\"/>";
}

/// The format that the script parses.
std::string plain_number(double value) {
  return printed("%.6g", value);
}

/// The data of the read-out, as attributes.
std::string data_attributes(const Curve& curve) {
  std::string steps;
  std::string values;
  std::string smooth;
  for (const auto i : curve.shown) {
    const auto& point = curve.series->points[i];
    const char* comma = steps.empty() ? "" : ",";
    steps.append(comma).append(std::to_string(point.step));
    values.append(comma).append(plain_number(point.value));
    if (!curve.smooth.empty()) smooth.append(comma).append(plain_number(curve.smooth[i]));
  }
  return " data-name=\"" + escape(curve.name()) + "\" data-steps=\"" + steps + "\" data-values=\"" + values + "\"" +
         (smooth.empty() ? "" : " data-smooth=\"" + smooth + "\"");
}

/// Marks for values that are not on the axis. Marks that would overlap are drawn once.
std::string lost_marks(const Curve& curve, const Plot& plot) {
  constexpr double mark_width = 9;
  std::string svg;
  double last_x[3] = {-mark_width, -mark_width, -mark_width};
  for (const auto& [step, value] : curve.series->points) {
    if (std::isfinite(value)) continue;
    const int kind = std::isnan(value) ? 0 : value > 0 ? 1 : 2;
    const double x = plot.x.position(static_cast<double>(step));
    if (x - last_x[kind] < mark_width) continue;
    last_x[kind] = x;
    // A cross on the step axis for NaN, an arrow out of the plot for an infinity.
    const double y = kind == 1 ? plot.y.to : plot.y.from - 6;
    const std::string shape = kind == 0 ? "m-4 -4l8 8m0 -8l-8 8" : kind == 1 ? "m-4 5l4 -6l4 6z" : "m-4 -3l4 6l4 -6z";
    svg += "<path class=\"lost\" d=\"M" + px(x) + " " + px(y) + shape + "\"><title>" + escape(curve.name()) + ": " +
           format_number(value) + " at step " + format_count(step) + "</title></path>";
  }
  return svg;
}

std::string draw(const Curve& curve, const Plot& plot) {
  const auto& points = curve.series->points;
  const auto x_of = [&](std::size_t i) { return plot.x.position(static_cast<double>(points[i].step)); };
  std::string svg = "<g class=\"curve " + run_class(curve.run) + (curve.is_companion ? " companion" : "") + "\"" +
                    data_attributes(curve) + ">";
  for (const auto step : curve.of->session_steps) {
    const double x = plot.x.position(static_cast<double>(step));
    if (step <= 0 || x <= plot.x.from || x > plot.x.to) continue;
    svg += "<path class=\"resumed\" d=\"M" + px(x) + " " + px(plot.y.from) + "V" + px(plot.y.to) + "\"><title>" +
           escape(curve.of->name) + " resumed from step " + format_count(step) + "</title></path>";
  }
  if (!curve.smooth.empty()) svg += path(curve, plot, "line raw", [&](std::size_t i) { return points[i].value; });
  svg += path(curve, plot, "line", [&](std::size_t i) { return curve.line_value(i); });
  if (points.size() <= few_points) {
    for (const auto i : curve.shown) {
      svg +=
          "<circle class=\"mark\" cx=\"" + px(x_of(i)) + "\" cy=\"" + px(plot.y_of(points[i].value)) + "\" r=\"2.2\"/>";
    }
  }
  if (!curve.shown.empty()) {
    const auto last = curve.shown.back();
    svg += run_mark(curve.run, x_of(last), plot.y_of(curve.line_value(last)));
  }
  return svg + lost_marks(curve, plot) + "</g>";
}

std::string legend(const std::vector<Curve>& curves) {
  std::string html = "<ul class=\"legend\">";
  for (const auto& curve : curves) {
    const auto& points = curve.series->points;
    html += "<li>" + run_swatch(curve.run) + "<span class=\"name\">" + escape(curve.name()) + "</span> <b>" +
            format_number(points.back().value) + "</b>";
    const auto is_lost = [](const Point& point) { return !std::isfinite(point.value); };
    const auto lost = std::count_if(points.begin(), points.end(), is_lost);
    if (lost > 0) {
      const auto first = std::find_if(points.begin(), points.end(), is_lost)->step;
      html += " <span class=\"warning\">" + format_count(lost) + " not finite, first at step " + format_count(first) +
              "</span>";
    }
    html += "</li>";
  }
  return html + "</ul>";
}

}  // namespace

std::string companion_of(const std::string& scalar) {
  return scalar == "grad_norm" ? "grad_norm_post_clip" : "";
}

std::string curve_figure(const std::string& scalar, const std::vector<RunRecord>& runs, ChartSize size) {
  const auto curves = curves_of(scalar, runs);
  if (curves.empty()) return "";
  const Plot plot = plot_of(scalar, runs, curves, size);
  const bool is_smoothed =
      std::any_of(curves.begin(), curves.end(), [](const auto& one) { return !one.smooth.empty(); });
  const std::string note = std::string(plot.y.is_log ? "logarithmic scale" : "") +
                           (plot.y.is_log && is_smoothed ? ", " : "") +
                           (is_smoothed ? "smoothed over faint raw values" : "");
  std::string html = "<figure class=\"" + std::string(figure_class(size)) + "\"><figcaption><h3>" + escape(scalar) +
                     "</h3><span class=\"note\">" + note + "</span>" + legend(curves) + "</figcaption>";
  html += "<svg class=\"plot\" role=\"img\" aria-label=\"" + escape(scalar) + " over the steps\" viewBox=\"0 0 " +
          px(plot.width) + " " + px(plot.height) + "\" data-frame=\"" + px(plot.x.from) + "," + px(plot.x.to) + "," +
          px(plot.y.from) + "," + px(plot.y.to) + "\" data-range=\"" + plain_number(plot.x.low) + "," +
          plain_number(plot.x.high) + "," + plain_number(plot.y.low) + "," + plain_number(plot.y.high) + "\"" +
          (plot.y.is_log ? " data-log=\"1\"" : "") + ">";
  html += axes(plot, size);
  for (const auto& curve : curves) html += draw(curve, plot);
  return html + "</svg></figure>\n";
}

}  // namespace tutti
