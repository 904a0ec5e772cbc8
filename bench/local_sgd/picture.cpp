#include "local_sgd/picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace tutti::bench {
namespace {

constexpr double panel_width = 270, panel_height = 240, left = 64, top = 34, gap = 44;
// The palette of Okabe and Ito, which color-blind readers can distinguish.
constexpr std::array colors{"#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442",
                            "#0072b2", "#d55e00", "#cc79a7", "#999999"};

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

struct Point {
  std::string method;
  double x = 0;
  Statistic loss;
};

/// Ticks in [least, most] at powers of ten and their multiples.
std::vector<double> log_ticks(double least, double most) {
  std::vector<double> ticks;
  for (double decade = std::pow(10, std::floor(std::log10(least))); decade <= most; decade *= 10) {
    for (const double factor : {1.0, 3.0}) {
      if (decade * factor >= least && decade * factor <= most) ticks.push_back(decade * factor);
    }
  }
  return ticks;
}

class Panel {
 public:
  Panel(double begin, std::vector<Point> points, std::string label)
      : begin_(begin), points_(std::move(points)), label_(std::move(label)) {
    const auto by_x = std::ranges::minmax(points_, {}, &Point::x);
    x0_ = by_x.min.x / 1.4;
    x1_ = by_x.max.x * 1.4;
    y0_ = std::ranges::min(points_, {}, [](const Point& point) { return point.loss.least; }).loss.least;
    y1_ = std::ranges::max(points_, {}, [](const Point& point) { return point.loss.most; }).loss.most;
    const double margin = std::max(0.05 * (y1_ - y0_), 0.005);
    y0_ -= margin;
    y1_ += margin;
  }

  void draw(std::ostream& out, bool with_scale) const {
    out << "<rect x='" << begin_ << "' y='" << top << "' width='" << panel_width << "' height='" << panel_height
        << "' fill='none' stroke='#888'/>\n";
    for (const double tick : log_ticks(x0_, x1_)) {
      out << "<line x1='" << x(tick) << "' x2='" << x(tick) << "' y1='" << top << "' y2='" << top + panel_height
          << "' stroke='#ddd'/><text text-anchor='middle' x='" << x(tick) << "' y='" << top + panel_height + 16 << "'>"
          << fixed(tick, 0) << "</text>\n";
    }
    for (int i = 0; i <= 4; ++i) {
      const double value = y0_ + (y1_ - y0_) * i / 4;
      out << "<line x1='" << begin_ << "' x2='" << begin_ + panel_width << "' y1='" << y(value) << "' y2='" << y(value)
          << "' stroke='#ddd'/>\n";
      if (!with_scale) continue;
      out << "<text text-anchor='end' x='" << begin_ - 6 << "' y='" << y(value) + 4 << "'>" << fixed(value, 2)
          << "</text>\n";
    }
    out << "<text text-anchor='middle' x='" << begin_ + panel_width / 2 << "' y='" << top + panel_height + 36 << "'>"
        << label_ << "</text>\n";
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const Point& point = points_[i];
      const char* color = colors[i % colors.size()];
      out << "<line x1='" << x(point.x) << "' x2='" << x(point.x) << "' y1='" << y(point.loss.least) << "' y2='"
          << y(point.loss.most) << "' stroke='" << color << "' stroke-width='2'/><circle cx='" << x(point.x) << "' cy='"
          << y(point.loss.mean) << "' r='5' fill='" << color << "'><title>" << point.method << ": loss "
          << fixed(point.loss.mean, 4) << "</title></circle>\n";
    }
  }

 private:
  double x(double value) const {
    return begin_ + panel_width * (std::log(value) - std::log(x0_)) / (std::log(x1_) - std::log(x0_));
  }
  double y(double value) const { return top + panel_height * (y1_ - value) / (y1_ - y0_); }

  double begin_;
  std::vector<Point> points_;
  std::string label_;
  double x0_ = 1, x1_ = 1, y0_ = 0, y1_ = 1;
};

std::vector<Point> points_of(const MethodTable& table, double MethodRun::*field, double unit) {
  std::vector<Point> points;
  for (const auto& [method, runs] : table.rows()) {
    const double x = statistic(runs, field).mean / unit;
    points.push_back({.method = method, .x = std::max(x, 1e-3), .loss = statistic(runs, &MethodRun::loss)});
  }
  return points;
}

}  // namespace

std::string draw(const MethodTable& table) {
  const double second = left + panel_width + gap, legend = second + panel_width + 20;
  std::ostringstream out;
  out << "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 " << legend + 130 << ' ' << top + panel_height + 50
      << "' font-family='sans-serif' font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n"
      << "<text x='" << left << "' y='20'>held-out loss at the end</text>\n";
  Panel(left, points_of(table, &MethodRun::bytes, 1e6), "MB sent by a rank").draw(out, true);
  Panel(second, points_of(table, &MethodRun::seconds, 1), "seconds").draw(out, false);
  double row = top + 12;
  for (std::size_t i = 0; i < table.rows().size(); ++i, row += 20) {
    out << "<circle cx='" << legend << "' cy='" << row - 4 << "' r='5' fill='" << colors[i % colors.size()]
        << "'/><text x='" << legend + 12 << "' y='" << row << "'>" << table.rows()[i].first << "</text>\n";
  }
  out << "</svg>\n";
  return out.str();
}

void write_picture(const MethodTable& table, const std::string& file) {
  std::ofstream out(file);
  out << draw(table);
  out.close();
  if (!out) throw std::runtime_error("cannot write " + file);
}

}  // namespace tutti::bench
