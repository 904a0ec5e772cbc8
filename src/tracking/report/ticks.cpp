#include "tracking/report/ticks.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "tracking/printed.h"

namespace tutti {
namespace {

/// "0.0050" -> "0.005".
std::string shortened(std::string text) {
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

std::string scientific(double value, int decimals) {
  const std::string label = printed("%.*e", decimals, value);
  const auto exponent = label.find('e');
  const int power = std::atoi(label.c_str() + exponent + 1);  // without a plus sign and leading zeros
  return shortened(label.substr(0, exponent)) + "e" + (power < 0 ? "\u2212" : "") + std::to_string(std::abs(power));
}

std::string label_of(double tick, double largest, int decimals) {
  if (tick == 0) return "0";
  const std::string sign = tick < 0 ? "\u2212" : "";
  const double size = std::abs(tick);
  for (const auto& [unit, name] : {std::pair(1e9, "G"), std::pair(1e6, "M"), std::pair(1e3, "k")}) {
    if (largest >= unit * (unit == 1e3 ? 10 : 1) && largest < 1e12) {
      return sign + shortened(printed("%.6f", size / unit)) + name;
    }
  }
  if (largest >= 1e12 || largest < 1e-4) {
    const int power = static_cast<int>(std::floor(std::log10(size) + 1e-9));
    return sign + scientific(size, std::clamp(decimals + power, 0, 12));
  }
  return sign + printed("%.*f", decimals, size);
}

/// The number of decimals at which `value` is exact, for up to twelve significant digits.
int decimals_of(double value) {
  if (value == 0) return 0;
  const int power = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
  for (int decimals = std::max(0, -power); decimals < 12 - power; ++decimals) {
    const double scaled = std::abs(value) * std::pow(10, decimals);
    if (std::abs(scaled - std::round(scaled)) < 1e-6) return decimals;
  }
  return std::max(0, 12 - power);
}

}  // namespace

std::vector<double> linear_ticks(double low, double high, int count) {
  if (!(high > low) || count < 1) return {low};
  const double rough = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double step = power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10);
  std::vector<double> ticks;
  const double slack = 1e-9 * step;  // keeps the last tick in spite of rounding
  for (double multiple = std::ceil((low - slack) / step); multiple * step <= high + slack; ++multiple) {
    ticks.push_back(multiple * step);
    if (ticks.size() > 1000) break;  // the ticks are closer than double precision
  }
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  using Leads = std::vector<double>;
  constexpr double most_decades = 12;
  const double stride = std::max(1.0, std::ceil((std::log10(high) - std::log10(low)) / most_decades));
  const double first = stride * std::floor(std::log10(low) / stride);
  for (const auto& leads : {Leads{1}, Leads{1, 2, 5}, Leads{1, 1.5, 2, 3, 5, 7}}) {
    std::vector<double> ticks;
    for (double power = first; power <= std::ceil(std::log10(high)); power += stride) {
      for (const double lead : leads) {
        const double tick = lead * std::pow(10, power);
        if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
      }
    }
    if (ticks.size() >= 4) return ticks;
  }
  return linear_ticks(low, high, 4);
}

std::vector<std::string> tick_labels(const std::vector<double>& ticks) {
  double largest = 0;
  int decimals = 0;
  for (const double tick : ticks) {
    largest = std::max(largest, std::abs(tick));
    decimals = std::max(decimals, decimals_of(tick));
  }
  // On a logarithmic axis each label has its own number of decimals.
  const bool is_log = ticks.size() > 2 && ticks[2] - ticks[1] > 1.5 * (ticks[1] - ticks[0]);
  std::vector<std::string> labels;
  labels.reserve(ticks.size());
  for (const double tick : ticks) {
    labels.push_back(is_log ? label_of(tick, std::abs(tick), decimals_of(tick)) : label_of(tick, largest, decimals));
  }
  return labels;
}

double Axis::position(double value) const {
  const auto scaled = [&](double x) { return is_log ? std::log(x) : x; };
  return from + (scaled(value) - scaled(low)) / (scaled(high) - scaled(low)) * (to - from);
}

}  // namespace tutti
