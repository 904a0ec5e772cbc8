#include "tutti/tracking/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "tracking/progress_line.h"

namespace tutti {
namespace {

constexpr std::size_t usual_width = 80;

/// The width of the terminal of standard error.
std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return usual_width;
  return size.ws_col;
}

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read before threads write
  return value == nullptr ? "" : value;
}

bool draws_in_place(const std::ostream& stream) {
  return &stream == &std::cerr && ::isatty(STDERR_FILENO) == 1 && variable("NO_COLOR").empty() &&
         variable("TERM") != "dumb";
}

}  // namespace

class ProgressBar::Line {
 public:
  Line(ProgressBarOptions options, std::ostream& stream)
      : options_(std::move(options)),
        stream_(stream),
        in_place_(options_.in_place.value_or(draws_in_place(stream))),
        begun_(options_.now()),
        updated_(begun_) {
    state_.description = options_.description;
    state_.unit = options_.unit;
    state_.total = options_.total;
    state_.done = options_.start;
  }

  void update(std::int64_t done, const std::string& postfix) {
    const auto now = options_.now();
    rate_.add(done - state_.done, std::chrono::duration<double>(now - updated_).count());
    updated_ = now;
    state_.done = done;
    state_.postfix = postfix;
    is_shown_ = false;
    const bool is_last = options_.total > 0 && done >= options_.total;
    const auto interval = in_place_ ? options_.interval_in_place : options_.interval_plain;
    if (is_last || !drawn_ || now - *drawn_ >= interval) draw(now);
  }

  void finish() {
    if (!is_shown_) draw(options_.now());
    if (in_place_ && drawn_) stream_ << '\n' << std::flush;
  }

 private:
  void draw(std::chrono::steady_clock::time_point now) {
    state_.elapsed = std::chrono::duration_cast<std::chrono::seconds>(now - begun_);
    state_.rate = rate_.per_second();
    if (in_place_) {
      // A line that fills the last column makes some terminals begin a new line.
      const std::size_t columns_left = terminal_width() - 1;
      std::string line = progress_line(state_, columns_left);
      const std::size_t width = columns(line);
      if (width < drawn_width_) line.append(std::min(drawn_width_, columns_left) - width, ' ');
      drawn_width_ = width;
      stream_ << '\r' << line << std::flush;
    } else {
      stream_ << progress_line(state_, usual_width * 2) << '\n' << std::flush;
    }
    drawn_ = now;
    is_shown_ = true;
  }

  ProgressBarOptions options_;
  std::ostream& stream_;
  bool in_place_;
  std::chrono::steady_clock::time_point begun_;
  std::chrono::steady_clock::time_point updated_;
  std::optional<std::chrono::steady_clock::time_point> drawn_;
  std::size_t drawn_width_ = 0;
  bool is_shown_ = true;  // before the first update there is nothing to show
  ProgressState state_;
  SmoothedRate rate_;
};

ProgressBar::ProgressBar(ProgressBarOptions options) : ProgressBar(std::move(options), std::cerr) {}

ProgressBar::ProgressBar(ProgressBarOptions options, std::ostream& stream)
    : line_(std::make_unique<Line>(std::move(options), stream)) {}

ProgressBar::~ProgressBar() {
  line_->finish();
}

void ProgressBar::update(std::int64_t done, const std::string& postfix) {
  line_->update(done, postfix);
}

}  // namespace tutti
