#include "tracking/report/html.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <ctime>

#include "tracking/printed.h"

namespace tutti {
namespace {

constexpr std::size_t run_colours = 6;

std::string with_true_minus(const std::string& text) {
  return text.starts_with('-') ? "\u2212" + text.substr(1) : text;
}

/// "6e-05" becomes "6e-5", with a true minus sign.
std::string with_short_exponent(const std::string& text) {
  const auto exponent = text.find('e');
  if (exponent == std::string::npos) return text;
  return text.substr(0, exponent + 1) + with_true_minus(std::to_string(std::atoi(text.c_str() + exponent + 1)));
}

}  // namespace

std::string escape(const std::string& text) {
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        const bool is_control = static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t' && c != '\r';
        safe += is_control ? std::string("\uFFFD") : std::string(1, c);
    }
  }
  return safe;
}

std::string format_number(double value, int digits) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "\u221E" : "\u2212\u221E";
  return with_true_minus(with_short_exponent(printed("%.*g", digits, value)));
}

std::string format_count(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::size_t first = text.starts_with('-') ? 1 : 0;
  for (std::size_t place = text.size(); place > first + 3;) text.insert(place -= 3, 1, ',');
  return with_true_minus(text);
}

std::string format_wall_time(double seconds) {
  const auto whole = static_cast<long long>(std::llround(std::fmin(std::fmax(seconds, 0), 1e12)));
  if (whole < 60) return printed("%lld s", whole);
  if (whole < 3600) return printed("%lld min %02lld s", whole / 60, whole % 60);
  if (whole < 86'400) return printed("%lld h %02lld min", whole / 3600, whole / 60 % 60);
  return printed("%lld d %02lld h", whole / 86'400, whole / 3600 % 24);
}

std::string format_date(double time) {
  const auto seconds = static_cast<std::time_t>(std::fmin(std::fmax(time, 0), 1e11));
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return printed("%d-%02d-%02d %02d:%02d UTC", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday, parts.tm_hour,
                 parts.tm_min);
}

std::string px(double value) {
  const double tenths = std::round(value * 10);
  return printed("%.10g", tenths == 0 ? 0 : tenths / 10);
}

std::string svg_text(const char* css, double x, double y, const std::string& text) {
  return std::string("<text class=\"") + css + "\" x=\"" + px(x) + "\" y=\"" + px(y) + "\">" + text + "</text>";
}

std::string run_class(std::size_t run) {
  return "run" + std::to_string(run % run_colours);
}

std::string run_mark(std::size_t run, double x, double y) {
  const auto polygon = [&](std::initializer_list<std::array<double, 2>> corners) {
    std::string points;
    for (const auto& [dx, dy] : corners) {
      points.append(points.empty() ? "" : " ").append(px(x + dx)).append(",").append(px(y + dy));
    }
    return "<polygon class=\"mark\" points=\"" + points + "\"/>";
  };
  switch (run % 5) {  // 5 shapes and 6 colours: a combination repeats after 30 runs
    case 0:
      return "<circle class=\"mark\" cx=\"" + px(x) + "\" cy=\"" + px(y) + "\" r=\"4\"/>";
    case 1:
      return polygon({{-3.6, -3.6}, {3.6, -3.6}, {3.6, 3.6}, {-3.6, 3.6}});
    case 2:
      return polygon({{0, -4.8}, {4.6, 3.6}, {-4.6, 3.6}});
    case 3:
      return polygon({{0, -5}, {5, 0}, {0, 5}, {-5, 0}});
    default:
      return polygon({{0, 4.8}, {4.6, -3.6}, {-4.6, -3.6}});
  }
}

std::string run_swatch(std::size_t run) {
  return "<svg class=\"swatch " + run_class(run) +
         "\" viewBox=\"0 0 26 12\" width=\"26\" height=\"12\" aria-hidden=\"true\">"
         "<path class=\"line\" d=\"M0 6H26\"/>" +
         run_mark(run, 13, 6) + "</svg>";
}

}  // namespace tutti
