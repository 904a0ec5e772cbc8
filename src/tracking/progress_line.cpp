#include "tracking/progress_line.h"

#include <algorithm>

#include <cmath>

#include "tracking/printed.h"

namespace tutti {
namespace {

constexpr double smoothing_seconds = 30;
constexpr std::size_t widest_bar = 40;
constexpr std::size_t narrowest_bar = 8;

bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;  // UTF-8
}

/// The text may come from the user. A line end or an escape sequence in it would break the line.
std::string in_one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7F; }, ' ');
  return text;
}

std::string cut(const std::string& text, std::size_t width) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!continues_character(text[i]) && ++used > width) return text.substr(0, i);
  }
  return text;
}

double share_done(const ProgressState& state) {
  return std::clamp(static_cast<double>(state.done) / static_cast<double>(state.total), 0.0, 1.0);
}

std::string bar(double share, std::size_t width) {
  const std::size_t inside = width - 2;
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(inside));
  std::string text(width, ' ');
  text.front() = '[';
  text.back() = ']';
  text.replace(1, filled, filled, '=');
  if (filled > 0 && filled < inside) text[filled] = '>';
  return text;
}

std::string times(const ProgressState& state) {
  std::string text = format_duration(state.elapsed);
  if (state.total <= 0 || !state.rate || *state.rate <= 0) return text;
  const double left = static_cast<double>(std::max<std::int64_t>(state.total - state.done, 0)) / *state.rate;
  constexpr double longest = 1e9;  // a longer duration could overflow
  return text + " < " + format_duration(std::chrono::seconds(std::llround(std::min(left, longest))));
}

}  // namespace

void SmoothedRate::add(std::int64_t steps, double seconds) {
  if (seconds <= 0 && steps <= 0) return;
  const double keep = std::exp(-std::max(seconds, 0.0) / smoothing_seconds);
  steps_ = steps_ * keep + static_cast<double>(std::max<std::int64_t>(steps, 0));
  seconds_ = seconds_ * keep + std::max(seconds, 0.0);
}

std::optional<double> SmoothedRate::per_second() const {
  if (seconds_ <= 0) return std::nullopt;
  return steps_ / seconds_;
}

std::string format_duration(std::chrono::seconds duration) {
  const long long seconds = std::max<long long>(duration.count(), 0);
  const long long minutes = seconds / 60;
  const long long hours = minutes / 60;
  if (hours == 0) return printed("%lld:%02lld", minutes, seconds % 60);
  if (hours < 24) return printed("%lld:%02lld:%02lld", hours, minutes % 60, seconds % 60);
  return printed("%lldd %02lld:%02lld:%02lld", hours / 24, hours % 24, minutes % 60, seconds % 60);
}

std::string format_rate(double per_second, const std::string& unit) {
  if (per_second <= 0) return "0 " + unit + "/s";
  const bool is_slow = per_second < 1;
  const double number = is_slow ? 1 / per_second : per_second;
  const int decimals = number < 10 ? 2 : number < 100 ? 1 : 0;
  return printed("%.*f ", decimals, number) + (is_slow ? "s/" + unit : unit + "/s");
}

std::size_t columns(const std::string& text) {
  return text.size() - static_cast<std::size_t>(std::count_if(text.begin(), text.end(), continues_character));
}

std::string progress_line(const ProgressState& state, std::size_t width) {
  const std::string before = in_one_line(state.description) +
                             (state.total > 0 ? printed(" %3d%%", static_cast<int>(share_done(state) * 100)) : "");
  std::string after = std::to_string(state.done);
  if (state.total > 0) after.append("/").append(std::to_string(state.total));
  const std::string unit = in_one_line(state.unit);
  after += " " + unit + (state.done == 1 ? "" : "s") + "  " + times(state);
  if (state.rate) after += "  " + format_rate(*state.rate, unit);
  if (!state.postfix.empty()) after += "  " + in_one_line(state.postfix);

  const std::size_t used = columns(before) + columns(after) + 2;
  if (state.total > 0 && width >= used + 1 + narrowest_bar) {
    return before + " " + bar(share_done(state), std::min(widest_bar, width - used - 1)) + "  " + after;
  }
  return cut(before + "  " + after, width);
}

}  // namespace tutti
