#pragma once
// The ticks of an axis and their labels. Round numbers after P. Heckbert, "Nice numbers for graph labels", Graphics
// Gems, 1990.
#include <string>
#include <vector>

namespace tutti {

/// About `count` multiples of 1, 2 or 5 times a power of ten, in [low, high].
std::vector<double> linear_ticks(double low, double high, int count);

/// Powers of ten in [low, high], both positive. If they are too few, also multiples of them; if too many, every second
/// or third one, and so on.
std::vector<double> log_ticks(double low, double high);

/// Labels that distinguish the ticks: with the decimals that they need, and with k, M, G for thousands and more.
std::vector<std::string> tick_labels(const std::vector<double>& ticks);

/// An axis that maps values to positions.
struct Axis {
  double low = 0;
  double high = 1;
  double from = 0;  ///< position of low
  double to = 1;    ///< position of high
  bool is_log = false;

  double position(double value) const;
};

}  // namespace tutti
